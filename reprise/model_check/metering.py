"""What a step costs, and what goes wrong when its regions run again; both are measured in a run of their own.

Bytes are those of storages that operators made in the step, after forward and at the peak; on an accelerator, those that the
allocator counts, if it does. Only the storages of dense tensors count. FLOPs are counted by the formulas of
``torch.utils.flop_counter``.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from reprise.model_check.errors import OwnWork
from reprise.model_check.reachable.snapshots import (
    Snapshot,
    State,
    changed_between,
    changed_in_place,
    filled_again,
    generators_drawn_anew,
    is_drawn_anew,
    snapshot,
)
from reprise.model_check.reachable.watched_model import WatchedModel, hash_of_numpy_state
from reprise.model_check.regions import Key, Region, RegionLog, RegionRun, Watch, current_run
from reprise.model_check.run import Checkpoint, Probe, Run, Setting, Tensors, copies, run
from reprise.model_check.tensors.operators import overwritten
from reprise.model_check.tensors.tensor_difference import difference


@dataclass(frozen=True)
class Costs:
    """Bytes of one step, after forward and at the peak, the peak of storages alone, and FLOPs; ``again_flops`` recompute."""

    kept_bytes: int
    peak_bytes: int
    storages_peak_bytes: int
    flops: int
    forward_flops: int
    again_flops: int


@dataclass(frozen=True)
class _ForwardRun:
    """What was before and after the forward of a region, and what of what its function reaches was read in between."""

    before: _Around
    after: _Around
    read: frozenset[str]


@dataclass
class Observations:
    """What was seen in the regions of a run; most map a name to where it was seen."""

    python_random: dict[str, str] = field(default_factory=dict)
    numpy_random: dict[str, str] = field(default_factory=dict)
    generators: dict[str, str] = field(default_factory=dict)
    training_flags: dict[str, str] = field(default_factory=dict)
    hooks: dict[str, str] = field(default_factory=dict)
    ended_by_torchscript: dict[str, str] = field(default_factory=dict)
    filled: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)  # that elements in ``filled`` are in, or ""
    changed_in_place: set[str] = field(default_factory=set)  # those in ``filled`` that forward changes in place, and again
    changed_outside: dict[str, str] = field(default_factory=dict)
    changed_unread: dict[str, str] = field(default_factory=dict)  # that a recomputation had not read when it was ended
    forward_of: dict[Key, _ForwardRun] = field(default_factory=dict)
    buffers_after_forward: Tensors = field(default_factory=dict)
    changed_by_recomputations: set[str] = field(default_factory=set)  # buffers
    updated_again: tuple[str, ...] = ()  # buffers, see _updated_again
    regions: tuple[Region, ...] = ()
    output_requires_grad: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    other_leaves: list[str] = field(default_factory=list)  # shapes of what has a gradient that is not compared

    def note_unread(self, unread: _Unread) -> None:
        """Warn of what the step may have failed for."""
        self.changed_outside |= unread.changed
        self.filled |= unread.filled


@dataclass(frozen=True)
class _Unread:
    """What the last recomputation had not read when it was ended after so many operators, by path, with lines.

    It may have been about to: an implementation may end it while an operator saves what it is given, before that runs.
    """

    changed: Mapping[str, str] = field(default_factory=dict)  # tensors that forward read and that changed since
    filled: Mapping[str, str] = field(default_factory=dict)  # tensors that forward left in a cache
    operators: int = -1


class _StepMeter(TorchDispatchMode):
    """Follows the operators that run inside: live storages, FLOPs, and when each storage was last read.

    An error of the meter's own does not end the step, but nothing is measured from then on.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.own = OwnWork()
        self.operators = 0
        self.unread = _Unread()
        self.read: dict[tuple[int, int], int] = {}  # by storage and offset, the number of the last operator that read it
        self.looked_for: dict[int, weakref.ref[torch.Tensor]] = {}  # tensors that regions found, by their identity
        self.read_themselves: dict[int, int] = {}  # these, and not their views: as ``read``, by id of reference
        # By id of reference: each operator that wrote all of it, and the last ones before that read its memory, and itself.
        self.overwritten: dict[int, list[tuple[int, int, int]]] = {}
        self.parameters = {id(one) for one in model.parameters()}  # and other leaves whose gradients are compared
        self.other_leaves: dict[int, weakref.ref[torch.Tensor]] = {}  # that were read
        self.alive = self.peak = self.kept = self.flops = self.forward_flops = self.again_flops = 0
        # Storages, with what counts their bytes once they are freed; None for those that were there before the step.
        self.known: weakref.WeakKeyDictionary[Any, weakref.finalize[..., Any] | None] = weakref.WeakKeyDictionary()
        with self.own:
            self.known.update(dict.fromkeys(storages((*model.parameters(), *model.buffers()))))
            self.lazy = [one for one in (*model.parameters(), *model.buffers()) if is_lazy(one)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.own.is_ignored:
            return func(*args, **kwargs)
        with self.own:
            self._note_inputs(func, args, kwargs)
        result = func(*args, **kwargs)
        with self.own:
            self._note_outputs(func, args, kwargs, result)
        return result

    def _note_inputs(self, func: Any, args: Any, kwargs: Any) -> None:
        self.operators += 1
        if self.lazy:
            self._leave_out_initialized()
        written = {id(one) for one in overwritten(func, args, kwargs)}
        for tensor in dense_tensors((args, kwargs)):
            storage = tensor.untyped_storage()
            self.known.setdefault(storage, None)
            place, found = (storage._cdata, int(tensor.storage_offset())), self.looked_for.get(id(tensor))
            found = found if found is not None and found() is tensor else None
            if id(tensor) in written and found is not None:
                read = self.read.get(place, 0), self.read_themselves.get(id(found), 0)
                self.overwritten.setdefault(id(found), []).append((self.operators, *read))
            elif id(tensor) not in written:
                self.read[place] = self.operators
                if found is not None:
                    self.read_themselves[id(found)] = self.operators
            if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self.parameters:
                self.other_leaves[id(tensor)] = weakref.ref(tensor)

    def _note_outputs(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        for storage in storages(result):
            if storage not in self.known:
                size = storage.nbytes()
                self.known[storage] = weakref.finalize(storage, self._freed, size)
                self.alive += size
        self.peak = max(self.peak, self.alive)
        if func.overloadpacket in flop_registry:
            flops = int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=result))
            self.flops += flops
            self.again_flops += flops if (one := current_run()) and one.number else 0

    def _leave_out_initialized(self) -> None:
        """Stop counting the storages of lazy parameters that forward has initialized: other parameters' do not count either."""
        for storage in storages([one for one in self.lazy if not is_lazy(one)]):
            if (made := self.known.get(storage)) is not None and made.detach():
                self.alive -= storage.nbytes()
            self.known[storage] = None
        self.lazy = [one for one in self.lazy if is_lazy(one)]

    def has_read(self, state: State, since: int) -> bool:
        """Whether an operator after number ``since`` has read a tensor as it was then; True for one that is not dense."""
        if state.memory is None:
            return True
        last = self.read.get((state.memory[0].cdata, state.memory[1]), 0)
        return (last if (first := self.first_overwritten(state, since)) is None else first[1]) > since

    def has_read_itself(self, state: State, since: int) -> bool:
        """As ``has_read``, but of this very tensor, and not of another one with its storage."""
        last = self.read_themselves.get(id(state.identity), 0)
        return (last if (first := self.first_overwritten(state, since)) is None else first[2]) > since

    def first_overwritten(self, state: State, since: int) -> tuple[int, int, int] | None:
        """The first operator after number ``since`` that wrote all of a tensor, as in ``overwritten``; None if none did."""
        return next((one for one in self.overwritten.get(id(state.identity), ()) if one[0] > since), None)

    def look_for(self, found: Snapshot) -> None:
        """Note from now on when these tensors are read."""
        references = [one.identity for one in found.values() if isinstance(one.identity, weakref.ref)]
        self.looked_for |= {id(one()): one for one in references if one() is not None}

    def shapes_of_other_leaves(self) -> Iterator[str]:
        """Of leaves with a gradient that is not compared, such as those that the step makes.

        They are not looked for in the graph: to read a node would keep a Python object for it, and a long chain of these is
        freed by recursion.
        """
        found = (one() for one in self.other_leaves.values())
        return (str(tuple(one.shape)) for one in found if one is not None and one.grad is not None)

    def unread_at_end(self) -> _Unread:
        """``unread`` if no operator has run since, so that the step failed there."""
        return self.unread if self.unread.operators == self.operators else _Unread()

    def _freed(self, size: int) -> None:
        self.alive -= size


def storages(tree: Any) -> Iterator[Any]:
    """The storages of the dense tensors in what an operator is given or returns."""
    return (tensor.untyped_storage() for tensor in dense_tensors(tree))


def dense_tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The dense tensors in what an operator is given or returns, lazy ones aside: tensors, and containers of them."""
    if isinstance(tree, torch.Tensor):
        if tree.layout == torch.strided and not is_lazy(tree):
            yield tree
    elif isinstance(tree, tuple | list | dict):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from dense_tensors(one)


def measure(
    setting: Setting, checkpoint: Checkpoint | None, seen: Observations, *, only: frozenset[Key] | None = None, steps: int = 1
) -> tuple[Costs, Run]:
    """The costs of the first step with all regions, or ``only`` these, run through ``checkpoint``; and the run.

    What happens in checkpointed regions is recorded in ``seen`` at once, even if the run fails. Raises what ``run`` does, and
    MeteringFails for an error of the meter itself.
    """
    meters: list[_StepMeter] = []
    peaks: list[int] = []

    def mode(model: nn.Module) -> AbstractContextManager[Any]:
        stack, meter = ExitStack(), meters[-1]
        with meter.own:
            if (found := _counting_allocator(model)) is not None:
                module, device = found
                module.reset_peak_memory_stats(device)
                stack.callback(lambda: peaks.append(module.max_memory_allocated(device)))
        stack.callback(lambda: seen.other_leaves.extend(meter.shapes_of_other_leaves()))
        stack.enter_context(meter)
        return stack

    def after_forward(model: nn.Module, log: RegionLog) -> None:
        seen.regions, seen.output_requires_grad = tuple(log.regions.values()), dict(log.output_requires_grad)
        meter = meters[-1]
        with meter.own:
            meter.kept, meter.forward_flops = _allocated(model, meter.alive), meter.flops
            seen.buffers_after_forward = copies(dict(model.named_buffers()))

    def watch(model: nn.Module) -> Watch | None:
        meters.append(meter := _StepMeter(model))
        with meter.own:
            watched = WatchedModel.of(model)
        return None if checkpoint is None or meter.own.failure else lambda one: _observed(seen, watched, one, meter)

    try:
        probe = Probe(mode, watch, after_forward, lambda leaves: meters[-1].parameters.update(map(id, leaves.values())))
        result = run(setting, checkpoint, steps=steps, only=only, probe=probe)
    except Exception:
        for one in meters:
            seen.note_unread(one.unread_at_end())
        raise
    meter = meters[-1]
    seen.ended_by_torchscript.clear()  # the implementation passed over it
    with meter.own:
        seen.updated_again = tuple(_updated_again(seen, result.buffers))
    meter.own.raise_failure()
    peak = peaks[-1] if peaks else meter.peak
    return Costs(meter.kept, peak, meter.peak, meter.flops, meter.forward_flops, meter.again_flops), result


_COUNTERS = "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"


def _counting_allocator(model: nn.Module) -> tuple[Any, torch.device] | None:
    """The device of a model with its module, such as ``torch.cuda``, if that counts the allocator's bytes; MPS's does not."""
    device = next((one.device for one in model.parameters() if one.device.type != "cpu"), None)
    module = None if device is None else getattr(torch, device.type, None)
    return (module, device) if device is not None and all(hasattr(module, name) for name in _COUNTERS) else None


def _allocated(model: nn.Module, otherwise: int) -> int:
    found = _counting_allocator(model)
    return otherwise if found is None else found[0].memory_allocated(found[1])


@dataclass(frozen=True)
class _Around:
    """What a region's run must not change, at its beginning or end: hashes of random streams; of recomputations, buffers."""

    python: int
    numpy: int
    training: list[bool]
    hooks: int
    buffers: Tensors
    reachable: Snapshot
    operators: int  # that have run

    @classmethod
    def of(cls, watched: WatchedModel, one: RegionRun, meter: _StepMeter) -> _Around:
        return cls(
            hash(random.getstate()),
            hash_of_numpy_state(),
            watched.training(),
            watched.hooks(one),
            copies(watched.buffers()) if one.number else {},
            snapshot(watched.known, one),
            meter.operators,
        )


@contextmanager
def _observed(seen: Observations, watched: WatchedModel, one: RegionRun, meter: _StepMeter) -> Iterator[None]:
    """Watch one run of a region: compare what it must not change before and after it."""
    before: _Around | None = None
    finished = False
    with meter.own:
        before = _Around.of(watched, one, meter)
        meter.look_for(before.reachable)
    try:
        yield
        finished = True
    except RuntimeError as error:
        if one.number and _is_of_torchscript(error):
            seen.ended_by_torchscript[one.region.name] = one.region.line
        raise
    finally:
        if before is not None and meter.own.failure is None:
            with meter.own:
                after = _Around.of(watched, one, meter)
                _compare_around(seen, watched, one, before, after)
                _compare_reachable(seen, one, before, after, meter, finished=finished)


def _is_of_torchscript(error: RuntimeError) -> bool:
    """Whether this is what TorchScript's interpreter makes of an exception of Python's: an error without a message."""
    lines = str(error).rstrip().splitlines()
    return len(lines) > 1 and "TorchScript interpreter" in lines[0] and lines[-1] == "RuntimeError:"


def _compare_around(seen: Observations, watched: WatchedModel, one: RegionRun, before: _Around, after: _Around) -> None:
    name, line = one.region.name, one.region.line
    forward = seen.forward_of.get(one.region.key) if one.number else None
    if forward is not None:
        if is_drawn_anew((forward.before.python, forward.after.python), (before.python, after.python)):
            seen.python_random[name] = line
        if is_drawn_anew((forward.before.numpy, forward.after.numpy), (before.numpy, after.numpy)):
            seen.numpy_random[name] = line
        is_there = before.hooks > forward.before.hooks and forward.after.hooks > forward.before.hooks
        if is_there or after.hooks > before.hooks:
            seen.hooks[name] = line
    since = forward.after.training if forward is not None else before.training
    for module, *flags in zip(watched.modules, since, before.training, after.training, strict=True):
        if len({*flags}) > 1:
            seen.training_flags[module] = line
    seen.changed_by_recomputations |= {*_differing(before.buffers, after.buffers, after.buffers)}


def _compare_reachable(
    seen: Observations, one: RegionRun, before: _Around, after: _Around, meter: _StepMeter, *, finished: bool
) -> None:
    """Compare what a recomputation reaches with what forward did."""
    around, key = (before.reachable, after.reachable), one.region.key
    was_read = {path for path, state in around[0].items() if state.is_tensor and meter.has_read(state, before.operators)}
    if one.number == 0:
        seen.forward_of[key] = _ForwardRun(before, after, frozenset(was_read))
    elif key in seen.forward_of:
        forward = seen.forward_of[key]
        first = forward.before.reachable, forward.after.reachable
        used = {path for path, state in around[0].items() if meter.has_read_itself(state, before.operators)}
        anew = {path for path, state in around[0].items() if meter.first_overwritten(state, before.operators)}
        filled = dict.fromkeys(filled_again(first, around, used, anew, finished=finished), one.region.line)
        seen.filled |= filled
        seen.containers |= {path: around[1][path].container for path in filled}
        seen.changed_in_place |= {path for path in filled if changed_in_place(first, path) and changed_in_place(around, path)}
        seen.generators |= dict.fromkeys(generators_drawn_anew(first, around), one.region.line)
        changed = [path for path in changed_between(first, around) if path not in filled]
        seen.changed_outside |= {path: one.region.line for path in changed if path in was_read}
        meter.unread = _Unread()
        if not finished:
            unread = [path for path in changed if path in forward.read - was_read]
            seen.changed_unread |= dict.fromkeys(unread, one.region.line)
            found = (path for path in filled_again(first, around, around[0].keys(), finished=False) if path not in filled)
            line = one.region.line
            meter.unread = _Unread(dict.fromkeys(unread, line), dict.fromkeys(found, line), meter.operators)


def _differing(before: Tensors, after: Tensors, names: Iterable[str]) -> Iterator[str]:
    """The names of those tensors that are in both and differ."""
    return (name for name in names if name in before and difference(name, before[name], after[name]))


def _updated_again(seen: Observations, after_backward: Tensors) -> Iterator[str]:
    """The buffers that recomputations changed, and that differ after backward from what they were after forward.

    Buffers that a backward hook writes are not among them, and neither are those that an implementation restores.
    """
    changed = (name for name in after_backward if name in seen.changed_by_recomputations)
    return _differing(seen.buffers_after_forward, after_backward, changed)
