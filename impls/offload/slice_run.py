"""A slice's run in forward: its microbatches run on loaded copies, and what they changed is written back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from impls.nested import checkpoint
from impls.nested.recomputation import StopRecomputation
from impls.offload.boundary import Boundary, SharedInputs, no_backward_below
from impls.offload.changes import Changes, CopyState, SharedMemory, changed_names
from impls.offload.execution import execute, in_modes, told_beside
from impls.offload.loaded_copies import Delivery, Nowhere, as_original, attach, attach_to_nothing, tangent_of
from impls.offload.microbatches import Call
from impls.offload.residence import Residence
from impls.offload.slice_use import Below, Loaded, SliceUse, Start, data_of
from impls.offload.slicing import Chain
from impls.offload.transfers import Arrival
from impls.offload.write_recorder import Twins, WriteRecorder
from impls.torch_private import StopRecomputationError

Tensors = dict[str, torch.Tensor]
# What ends a recomputation of a region around the model early, by which nothing is to change.
EARLY_STOPS = (StopRecomputation, StopRecomputationError)


class SliceRun:
    """One slice in one call of the model; ``copies`` are what its modules are given."""

    def __init__(self, index: int, chain: Chain, residence: Residence, memory: SharedMemory) -> None:
        self.index, self.chain, self.residence, self.route = index, chain, residence, residence.route
        self.memory = memory
        self.title = f"slice {index} ({', '.join(chain._modules)})"
        self.use = SliceUse(index, chain, residence)
        self.loaded: Loaded | None = None
        self.copies: Tensors = {}
        self.stale: set[str] = set()  # copies whose originals a microbatch has changed by another name
        self.changes = Changes(self.title, self.use, chain, memory)
        self.delivery = Delivery(0)
        self.find_changed: Callable[[Mapping[str, Any]], set[str]] | None = None  # by what modules have, while they run
        self.changed: set[str] = set()  # by the last microbatch
        memory.slices.append(self.use.tensors)
        self.reading: list[Any] = []

    def load(self) -> None:
        """Send for the slice."""
        self.residence.wait_for_other_calls(self.memory)
        self.loaded = self.use.load()
        self.reading.append(self.loaded.arrival.done)

    def run(self, calls: Sequence[Call], below: Below | None, checkpointed: bool, earlier: Sequence[SliceRun]) -> list[Any]:
        """The values for all microbatches; ``below`` is the use of the run before, ``earlier`` are all runs before.

        Other threads wait from the look at the originals until what changed of them is written back, or it would be lost.
        """
        with self.residence.exclusive():
            present = SliceUse(self.index, self.chain, self.residence)
            if not present.is_same(self.use) or any(run.changes.affect(present) for run in earlier):
                for run in earlier:
                    run.settle()  # what they wrote back has to be there before it is read
                self.use, self.changes = present, Changes(self.title, present, self.chain, self.memory)
                self.load()
            assert self.loaded is not None
            self.use.below, self.use.recomputed = below, checkpointed and torch.is_grad_enabled()
            self.delivery = Delivery(len(calls) if self.use.recomputed else 0)
            self.loaded.arrival.wait()
            try:
                for name, values in self.loaded.arrival.copies.items():
                    self.attach(name, values)
                results = [self.run_one(*call) for call in calls]
                self.write_back(self.copies)
                return results
            finally:
                self.loaded, self.copies, self.find_changed = None, {}, None

    def write_back(self, copies: Tensors) -> None:
        """Give the originals what the run left."""
        self.changes.write_back(copies)
        self.residence.note_writes(self.memory, self.changes.pending)

    def attach(self, name: str, values: torch.Tensor) -> None:
        """Give the modules these values under this name from now on. RuntimeError if gradients could not be summed as asked."""
        original = self.use.tensors[name]
        wanted = (
            getattr(original, "grad_dtype", original.dtype) if original.is_leaf and original.requires_grad else original.dtype
        )
        if wanted != original.dtype:
            raise RuntimeError(
                f"parameter {name!r} of an offloaded model has grad_dtype={wanted}, but gradients of its copies are summed "
                f"in its own dtype, {original.dtype}. Convert the parameter, or set grad_dtype to its dtype"
            )
        self.copies[name] = attach(values, original, self.route, self.delivery)

    def run_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Start from what the microbatch before left, in copies of its own; these stay until the run is over, or another tensor
        # could get the number of a storage by which saved tensors are told apart.
        start = {name: self.copies[name].detach() for name in sorted(self.changes.names)}
        own = self.route.load(start) if start else Arrival({}, None, None)
        own.wait()
        for name, values in own.copies.items():
            self.attach(name, values)
        if not self.use.recomputed:
            return self.forward(args, kwargs)
        self.changes.begin(start)
        shared = SharedInputs(args, kwargs)
        region = _Region(self, Boundary(self.title, args, kwargs, self.route))
        region.first, region.changed_so_far = lambda: self.forward(args, kwargs), self.changed_so_far
        try:
            with no_backward_below(self.title, args, kwargs):
                # Not stopped early, or modules would stay as forward has them in between: in evaluation, or with a hook.
                value = checkpoint(region, *region.boundary.generators, early_stop=False)
            shared.refuse_changes(self.title)
            region.end_forward(self.changed)
            return value
        finally:
            region.first = region.changed_so_far = region.thread = None

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = self.changes.starts[-1] if self.use.recomputed else Start()
        given = dict(self.copies)
        before = {name: CopyState.of(copy) for name, copy in given.items()}
        twins = Twins(self.memory, self.use.tensors, self.copies)
        for name in self.stale:
            twins.note_stale_copy(name)
        for name in self.changes.names - self.changes.assigned.keys():
            twins.note_stale_original(name)
        statistics = WriteRecorder(twins)
        self.find_changed = partial(changed_names, self.copies, before, updated=statistics.updated)
        try:
            with statistics if self.memory.in_use else nullcontext():
                value = execute(self.use, self.chain, given, start, args, kwargs)
        except BaseException as error:
            if not isinstance(error, EARLY_STOPS):
                with told_beside(error):
                    self.changes.note(self.copies, before, given, statistics.updated, start)
                    self.write_back(given)
            raise
        self.refuse_other_settings(before)
        if self.use.recomputed:
            self.refuse_new_buffers()
        self.changes.note(self.copies, before, given, statistics.updated, start)
        self.changed = self.find_changed(given)
        self.copies, self.stale = given, twins.stale_copies
        return value

    def changed_so_far(self) -> set[str]:
        """What forward, which is under way, has changed until now."""
        assert self.find_changed is not None
        after = dict[str, Any](self.copies)
        for name in after:
            path, _, own = name.rpartition(".")
            module = self.chain.get_submodule(path)
            after[name] = {**module._buffers, **module._parameters}.get(own)
        return self.find_changed(after)

    def refuse_other_settings(self, before: Mapping[str, CopyState]) -> None:
        """One that has a reference to an original, as a hook may, can give it other data or freeze it, unlike the copy."""
        for name, original in self.use.tensors.items():
            frozen = "frozen" if before[name].requires_grad else "unfrozen"
            done = "given other data" if data_of(original) != self.use.stamps[name].data else frozen
            if done != frozen or original.requires_grad != before[name].requires_grad:
                raise RuntimeError(
                    f"parameter or buffer {name!r} of an offloaded model was {done} while {self.title} ran with a copy of it, "
                    "by a reference that was taken before, as an optimizer has. Freeze and unfreeze before the call, "
                    "and give other data to the attribute of the module"
                )

    def refuse_new_buffers(self) -> None:
        """A recomputation would start with the buffers that forward has made, and make or change them again."""
        for path, module in self.chain.named_modules():
            new = [
                name
                for name, tensor in module._buffers.items()
                if tensor is not None and f"{path}.{name}" not in self.use.places
            ]
            if new:
                for name in new:
                    module._buffers[name] = None
                raise RuntimeError(
                    f"{self.title} made buffer {path}.{new[0]} in forward, and would do so again when it is recomputed. "
                    "Register it with a value before, or pass checkpoint_activation=False"
                )

    def settle(self) -> None:
        """Let the host wait for the copies that read and write parameters and buffers."""
        for event in (*self.reading, *self.changes.pending):
            if event is not None:
                event.synchronize()


class _Region:
    """One microbatch of a slice as a checkpointed region: runs in forward on the run's copies, later on others."""

    def __init__(self, run: SliceRun, boundary: Boundary) -> None:
        self.use, self.chain, self.boundary = run.use, run.chain, boundary
        self.start = run.changes.starts[-1]
        self.flags = {name: tensor.requires_grad for name, tensor in run.use.tensors.items()}
        self.has_tangents = boundary.has_tangents or any(tangent_of(tensor) is not None for tensor in run.use.tensors.values())
        self.memory = run.memory
        self.neighbours = {name: run.memory.neighbours(name) for name in run.use.tensors}
        self.modes = [(module, module.training) for module in self.chain.modules()]
        self.delivery = run.delivery
        self.first: Callable[[], Any] | None = None
        self.changed_so_far: Callable[[], set[str]] | None = None  # by forward, until it is over
        self.changed: set[str] = set()  # by forward; until it is over, by runs for backward calls inside
        self.thread: int | None = None  # on which forward runs, until it is over
        self.__qualname__ = run.title

    def __call__(self, *_: torch.Generator) -> Any:
        first, self.first = self.first, None  # a backward inside recomputes before this is over
        if first is not None:
            self.thread = threading.get_ident()
            return first()
        if self.thread not in (None, threading.get_ident()):  # it would wait for the slice, which waits for it
            raise RuntimeError(
                f"{self.__qualname__} runs backward in forward, which has another thread recompute it on "
                f"{self.use.residence.route.device} while it runs. Pass checkpoint_activation=False"
            )
        if self.has_tangents:
            raise RuntimeError(
                f"{self.__qualname__} ran on tensors that have tangents of forward-mode differentiation, which are not there "
                "when it runs again in backward. Pass checkpoint_activation=False"
            )
        so_far = None if self.changed_so_far is None else self.changed_so_far()
        self.refuse_lost_places()
        value, changed = self.run_again()
        if so_far is None:
            self.refuse_other_changes(self.changed, changed, self.changed ^ changed)
        else:  # this has run to the end of the module that forward is in the middle of
            self.refuse_other_changes(so_far, changed, so_far - changed)
            self.changed |= changed
        self.delivery.note(id(self))
        return value

    def load(self) -> Tensors:
        """The parameters and buffers that forward began with."""
        names = [name for name in self.flags if name not in self.start]
        self.use.check(names)
        self.use.check_silent(names)
        for name in names:
            for neighbour in self.neighbours[name]:
                neighbour.check(name)
        loaded = self.use.resident(names)
        copies = {name: loaded[name] for name in names}
        if self.start:
            own = self.use.residence.route.load(self.start)
            own.wait()
            copies |= own.copies
        return copies

    def run_again(self) -> tuple[Any, set[str]]:
        """The value of another run, and the names of what that changed."""
        copies, nowhere = self.load(), Nowhere(self.__qualname__)
        given = {name: attach_to_nothing(copies[name], flag, nowhere) for name, flag in self.flags.items()}
        given = {name: as_original(alias, self.use.tensors[name]) for name, alias in given.items()}
        aliases, before = dict(given), {name: CopyState.of(alias) for name, alias in given.items()}
        args, kwargs = self.boundary.restore(nowhere)
        # A dispatch mode has composite operators call others, which save other tensors: forward ran inside of one.
        writes = WriteRecorder(Twins(self.memory, {}, {}, again=self.__qualname__))
        try:
            # For a backward inside forward no further than that has come: others have no business yet to change or raise.
            chain = self.chain.again(as_far_as_it_is=self.thread is not None)
            with (
                self.use.residence.exclusive(),
                in_modes(self.modes, self.chain),
                writes if self.memory.in_use else nullcontext(),
            ):
                value = execute(self.use, chain, given, self.start, args, kwargs)
        finally:
            nowhere.over = True
        return value, changed_names(aliases, before, given, writes.updated)

    def end_forward(self, changed: set[str]) -> None:
        """Forward is over, and this is what it changed."""
        self.refuse_other_changes(changed, self.changed, self.changed - changed)
        self.changed = changed

    def refuse_other_changes(self, forward: set[str], again: set[str], differing: set[str]) -> None:
        """Raise RuntimeError if there is something that forward alone has changed, or another run alone.

        A run starts with the values that forward started with, and with attributes of modules as they are now. Whether what
        differs is read cannot be told: ``tolist`` and numpy read it without an operator.
        """
        if not differing:
            return
        first, second = (", ".join(sorted(names & differing)) or "nothing" for names in (forward, again))
        raise RuntimeError(
            f"{self.__qualname__} changed other parameters or buffers when it ran again in backward than it did in forward: "
            f"{second} instead of {first}. Where modules do something only once, or now and then, keep what decides it in a "
            "buffer, which a recomputation starts with as forward did, or pass checkpoint_activation=False"
        )

    def refuse_lost_places(self) -> None:
        """Modules that were exchanged since forward may have no place for a parameter that it ran with."""
        for place in self.use.places:
            path, _, own = place.rpartition(".")
            try:
                module = self.chain.get_submodule(path)
            except AttributeError:
                module = None
            if module is None or own not in {**module._parameters, **module._buffers}:
                raise RuntimeError(
                    f"{self.__qualname__} had a parameter or buffer {place!r} in forward, for which its modules have no place "
                    "now that it runs again. Exchange modules after backward, or pass checkpoint_activation=False"
                )
