"""A region of the nested checkpoint: its slots in the graph, and what unpacking one of them sets going.

Where the time goes (``python -m reprise overhead --profile`` measures it): three calls of Python for each saved tensor,
``pack`` here, ``Recomputation.pack``, ``unpack`` here; then the tensor's metadata, in forward and again, and the probe
of its version. So a slot is one tuple, metadata are compared as one tuple, and equal neighbours share it. Every
saved tensor is probed, even one that dies in forward: an alias that was detached from it may still change its values.
What a region costs beyond its tensors is the early stop, random state, modes and arguments.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn

import torch

from impls.nested.inputs import (
    FlatInputs,
    Inputs,
    Places,
    capture_inner_inputs,
    capture_inputs,
    states_to_fill,
)
from impls.nested.kept_containers import ContainersOfRun
from impls.nested.later_hooks import silence_later_hooks
from impls.nested.operator_log import OperatorLog, format_log
from impls.nested.recomputation import NO_CONTEXT, Recomputation, RecomputedTensors
from impls.nested.user_hooks import HookOwner
from impls.state import advisory_locks, modes, random_numbers, streams
from impls.state.hook_registrations import registration_count, undo_registrations
from impls.state.process_lock import ProcessLockError, run_undisturbed
from impls.state.restoration import Restoration
from impls.tensors.closures import closed_over_results, find_changed
from impls.tensors.origins import Origin, find_origin, find_outside, keep_storages, make_result_origin
from impls.tensors.versions import (
    TensorMetadata,
    VersionProbe,
    any_tensor_metadata,
    describe,
    tensor_metadata,
    version_probe,
)
from impls.torch_private import (
    current_autograd_node,
    current_graph_exec_group,
    current_graph_task_id,
    dispatch_mode_count,
    innermost_transform,
    is_batched_tensor,
    next_sequence_number,
    queue_callback,
    run_frames_untraced,
    top_hooks,
)

# What regions have recomputed for a group of backward calls. What none of them has used goes with the group, not with the
# graph: it leads to the region, which is its key.
_by_group: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Region, RecomputedTensors]] = weakref.WeakKeyDictionary()


class CheckpointError(RuntimeError):
    """A region cannot be recomputed, or its recomputation is not what forward was."""


KEPT_RESULT = (
    "a backward goes through a result that the function keeps somewhere and that its recomputation has made anew, and the "
    "region's own graph, by which it could be recomputed, was freed. Pass retain_graph=True to the backward before, or return "
    "the result from the function"
)

# Stands in the graph for a tensor that forward saved: its index, the probe of its version, and its metadata then.
Slot = tuple[int, VersionProbe, TensorMetadata]


def _reference_counts(slots: list[Any]) -> list[int]:
    return [sys.getrefcount(slot) for slot in slots]


(_ALONE,) = _reference_counts([(object(),)])  # as many as an object has that is nowhere but in the list


def _slots_in_graph(slots: list[Slot]) -> list[Slot | None]:
    """The slots that somebody else holds too, which is the graph; None in place of those that it has cleared.

    A forward that is under way on another thread may add slots meanwhile: those are left out.
    """
    return [slot if count > _ALONE else None for count, slot in zip(_reference_counts(slots), slots, strict=False)]


def _slots_of_same_node(slot: Slot) -> set[int]:
    """The identities of the slot and of those that the node which is being executed has saved beside it.

    Whoever reads the ``ctx.saved_tensors`` of a custom Function a second time reads all of them, and one recomputation will do.
    """
    node = current_autograd_node()
    try:
        own = {id(one.data) for one in getattr(node, "_raw_saved_tensors", ())}
    except RuntimeError:  # a node that has freed its own, while a hook reads those of another one
        own = set()
    return own if id(slot) in own else {id(slot)}


class Region(HookOwner):
    """One call of ``checkpoint``: its inputs, its slots, and how to run it again."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: AbstractContextManager[Any]
    ) -> None:
        self.function, self.context = function, context
        self.slots: list[Slot] = []
        self.inner_places: list[Places] = []  # where regions inside were passed tensors, call by call
        self.last_metadata: TensorMetadata | None = None
        self.inner_versions: list[int] = []  # versions of the tensors that regions inside saved
        self.enclosing = _enclosing_region()
        self.inputs: Inputs | FlatInputs = (
            capture_inputs(args, kwargs) if self.enclosing is None else self.enclosing.capture_inner(args, kwargs)
        )
        self.closed_over = closed_over_results(function)
        self.changed_name: str | None = None  # of one that forward has changed
        # Tensors from outside by the index of their slots; -1, -2 and so on, for those that regions inside saved.
        self.origins: dict[int, Origin] = {}
        self.candidates: dict[int, Origin] = {}  # of which forward's end tells whether they are from outside
        self.first_sequence_number: int = (
            self.enclosing.first_sequence_number if isinstance(self.enclosing, Region) else next_sequence_number()
        )
        self.values_by_task: dict[int, weakref.ref[RecomputedTensors]] = {}
        self.modes, self.stream = modes.current_modes(), streams.current_stream()
        self.pass_through = modes.pass_through()
        self.modes_after: modes.ProcessWide | None = None
        self.states: random_numbers.States = []
        self.hooks_at_start, self.hooks_at_end = registration_count(), -1
        self.early_stop, self.check, self.complete = True, True, False
        self.operator_log: OperatorLog | None = None

    def pack(self, tensor: torch.Tensor) -> Slot:
        try:
            metadata = tensor_metadata(tensor)
        except RuntimeError:  # of a nested tensor, which has no shape
            metadata = any_tensor_metadata(tensor)
        if metadata == self.last_metadata:
            metadata = self.last_metadata  # neighbours often have the same, and then one object serves them all
        else:
            self.last_metadata = metadata
        slots = self.slots
        slot = (len(slots), version_probe(tensor), metadata)  # rule 1: hooks do not stack, only the innermost region is asked
        slots.append(slot)
        origin: Origin | None = None
        if self.check:
            base = tensor._base
            if base is None and not metadata[5]:
                self.candidates[slot[0]] = origin = make_result_origin(tensor, slot[1], metadata)
            elif not (is_argument := self.inputs.contains(tensor)) or metadata[5]:  # a leaf may be given other data
                origin = find_origin(tensor, tensor if base is None else base, slot[1], metadata)
                if origin is not None and is_argument:
                    origin.keep_storage(tensor)
                    self.origins[slot[0]] = origin
                elif origin is not None:
                    self.candidates[slot[0]] = origin
        if self.enclosing is not None:
            self.enclosing.on_inner_save(tensor, origin)
        return slot

    def saved_count(self) -> int:
        return len(self.slots)

    def capture_inner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The arguments of a region inside, whose tensors this one saves (rule 2)."""
        inputs, places = capture_inner_inputs(args, kwargs, self)
        self.inner_places.append(places)
        return inputs

    def on_inner_save(self, tensor: torch.Tensor, origin: Origin | None) -> None:
        """Note the version of a tensor that a region inside saves, for comparison when this one is recomputed."""
        one: Region | Recomputation | None = self
        while isinstance(one, Region):  # no recursion: regions may be as deep as Python allows for
            one.inner_versions.append(tensor._version)
            if origin is not None:
                one.candidates[-len(one.inner_versions)] = origin
            one = one.enclosing
        if one is not None:
            one.on_inner_save(tensor, origin)

    def end_forward(self, output: Any) -> None:
        """Forward is over, or has failed: let go of what only that needed. What is from outside shows as the outermost ends."""
        if self.candidates:
            left = find_outside(self.candidates, self.first_sequence_number, self.inputs.contains)
            self.origins.update(left)
            self.candidates = {}
            if left and not isinstance(self.enclosing, Region):
                keep_storages(left.values(), output, hooks_were_active=self.inputs.hooks_were_active)
        if self.closed_over:
            self.changed_name, self.closed_over = find_changed(self.closed_over), []
        self.enclosing = self.last_metadata = self.user_hooks = None
        if isinstance(self.inputs, Inputs):
            self.inputs.find_other_names(self.function)
        self.inputs.end_forward()
        self.hooks_at_end = registration_count()

    def has_registered_hooks(self) -> bool:
        """Whether forward registered hooks, on arguments or elsewhere, or still runs."""
        return self.hooks_at_end == -1 or self.hooks_at_end != self.hooks_at_start

    def unpack(self, slot: Slot) -> torch.Tensor:
        index, probe, metadata = slot
        version = metadata[3]
        now = probe._version
        if now != version:
            self.refuse(f"saved tensor {index} ({describe(metadata)}) was changed in place after it was saved: it is at "
                        f"version {now}, expected version {version}. Clone it before changing it")  # fmt: skip
        task = current_graph_task_id()
        reference = self.values_by_task.get(task)
        values = None if reference is None else reference()
        tensor = None if values is None else values.pop(index, None)  # rule 4: it dies as it is unpacked
        if tensor is None:
            tensor = self.recompute_locked(task, slot)
        if tensor._version != version:
            self.refuse(f"saved tensor {index} ({describe(metadata)}) {changed_again(early_stop=self.early_stop)}")
        return tensor

    def put_back(self, slot: Slot, tensor: torch.Tensor) -> RecomputedTensors:
        """Have a tensor that was unpacked handed over by the next unpacking of its slot, while what this returns is kept."""
        task = current_graph_task_id()
        values = self.find_values(task)
        if values is None:
            values = RecomputedTensors()
            values.task = task
            self.values_by_task[task] = weakref.ref(values)
        values[slot[0]] = tensor
        return values

    def find_values(self, task: int) -> RecomputedTensors | None:
        """What is left of a recomputation for a backward, or for another one of the same group."""
        reference = self.values_by_task.get(task)
        values = None if reference is None else reference()
        if values is None and task != -1 and (group := current_graph_exec_group()) is not None:
            regions = _by_group.get(group)
            values = None if regions is None else regions.get(self)
            if values is not None:
                self.values_by_task[task] = weakref.ref(values)
        return values

    def recompute_locked(self, task: int, slot: Slot) -> torch.Tensor:
        """Recompute. Other threads that want to recompute this region wait meanwhile, unless one would wait for ever."""
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self.recompute_locked(task, slot)
        begun = advisory_locks.acquire(id(self))
        try:
            values = self.find_values(task)
            if values is None or slot[0] not in values:  # another thread of this backward may have come first
                values = run_undisturbed(partial(self.recompute, task, slot))
            return values.pop(slot[0])
        except ProcessLockError as error:
            self.refuse(str(error))
        finally:
            if begun:
                advisory_locks.release(id(self))

    def find_wanted(self, task: int, slot: Slot, values: RecomputedTensors | None) -> list[Slot | None]:
        """The slots to recompute for a backward that has these values left; None in place of the others.

        As a rule these are the slots that the graph still has, since the backward may yet ask for them; what it has cleared is
        skipped (rule 6). Outside of a backward, or if a backward asks again for what it has unpacked, they are the slots of one
        node. If the values are those that another backward of the group has left, they are the slots that it has used up.
        """
        wanted = _slots_in_graph(self.slots)
        if task == -1 or (values is not None and values.task == task):
            asked = _slots_of_same_node(slot)
            return [one if id(one) in asked else None for one in wanted]
        if values is not None:
            return [None if one is None or one[0] in values else one for one in wanted]
        return wanted

    def keep_until_the_end(self, task: int, values: RecomputedTensors) -> None:
        """Have what was recomputed owned by the backward that it is for, or by the group that this is one of (rule 4)."""
        group = current_graph_exec_group()
        if group is None and len(values) == 1:  # which is about to be unpacked
            return
        self.values_by_task = {key: weak for key, weak in self.values_by_task.items() if weak() is not None}
        self.values_by_task[task] = weakref.ref(values)
        values.task = task
        if group is None:
            queue_callback(values)  # the engine lets go of it also when the backward fails
        else:
            _by_group.setdefault(group, weakref.WeakKeyDictionary())[self] = values

    def recompute(self, task: int, slot: Slot) -> RecomputedTensors:
        """Run the function again. Returns what it recomputed, with what is left of earlier runs for the same backward."""
        complete = self.complete  # asked before the slots are, as forward may end meanwhile on another thread
        left = self.find_values(task)
        wanted = self.find_wanted(task, slot, left)
        changed = self.inputs.first_changed()
        if changed is not None:
            self.refuse(f"input tensor {changed} was changed in place since it was passed, so forward cannot be repeated. "
                        "Clone it before changing it")  # fmt: skip
        if self.changed_name is not None and self.check:
            self.refuse(f"the function changed {self.changed_name!r} in place, a tensor that it reads and was not passed, so "
                        "forward cannot be repeated. Clone it before changing it")  # fmt: skip
        args, kwargs, tensors, reused, filled = self.inputs.restore()  # rule 2: unpacking these recomputes the parent first
        run = Recomputation(wanted, self.slots, self.inner_versions, self.inner_places, self.origins, unpack_later(self),
                            complete=complete, early_stop=self.early_stop, check=self.check,
                            log=self.operator_log is not None)  # fmt: skip
        with ContainersOfRun(reused):
            if any(map(_is_from_ended_vmap, tensors)):
                self.refuse("it was called under torch.func.vmap, which is over, so forward cannot be repeated. Call vmap "
                            "inside the region")  # fmt: skip
            # Backward may come from another stream: of a node that forward ran elsewhere.
            registering, below = self.has_registered_hooks(), stand_in(self.pass_through)
            silenced = silence_later_hooks(tensors, self.hooks_at_start, self.hooks_at_end)
            with silenced, streams.use_stream(self.stream), undo_registrations(tensors, registering=registering), below:
                states = [*self.states, *states_to_fill(filled)] if filled else self.states
                surroundings = Restoration(self.modes, states, self.modes_after)
                values = run.run(lambda: self.function(*args, **kwargs), surroundings, self.context)  # keeps rule 3
        if run.mismatch is not None:
            self.refuse(f"recomputation differs from forward: {run.mismatch}. The function must do the same in both runs",
                        run.operator_log)  # fmt: skip
        if left is not None:
            left.update(values)
            left.task = task
            return left
        if task != -1:
            self.keep_until_the_end(task, values)
        return values

    def unpack_at(self, index: int) -> torch.Tensor:
        """A tensor that forward saved, whether or not the graph has cleared its slot: a kept recomputed graph may need it."""
        return self.unpack(self.slots[index])

    def refuse(self, reason: str, recomputed: OperatorLog | None = None) -> NoReturn:
        message = f"checkpointed region {name_of(self.function)!r}: {reason}."
        if self.operator_log is not None:
            message += format_log("Operators in forward", self.operator_log)
            message += format_log("Operators in recomputation", recomputed)
        raise CheckpointError(message)


run_frames_untraced(Region.unpack.__code__)  # which compiled autograd calls


def changed_again(*, early_stop: bool) -> str:
    """What to say of a tensor that the recomputation has changed in place after it was saved there."""
    if early_stop:
        return "was changed in place during recomputation, unlike in forward"
    return (
        "was changed in place by the recomputation after it was saved there: with early_stop=False the function runs to its "
        "end before backward gets what it saves. Clone it before changing it, or leave early_stop on"
    )


def unpack_later(region: Any) -> Callable[[int], torch.Tensor]:
    """What gives a saved tensor, by its index, to a graph of a recomputation that is over; it does not own the region."""
    return partial(_unpack_of, weakref.ref(region), name_of(region.function))


def _unpack_of(reference: weakref.ref[Any], name: str, index: int) -> Any:
    region = reference()
    if region is None:
        raise CheckpointError(f"checkpointed region {name!r}: {KEPT_RESULT}.")
    return region.unpack_at(index)


def name_of(function: Callable[..., Any]) -> str:
    """What a region's function is called in messages."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def stand_in(pass_through: type[modes.PassThrough] | None) -> AbstractContextManager[Any]:
    """The dispatch mode for a recomputation whose forward had some, unless there are some now."""
    return NO_CONTEXT if pass_through is None or dispatch_mode_count() else pass_through()


def _is_from_ended_vmap(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func.vmap, and no transform is under way in which it could be used."""
    return is_batched_tensor(tensor) and innermost_transform() is None


def _enclosing_region() -> Region | Recomputation | None:
    """The region whose forward or recomputation is under way here, if no other hooks are in between."""
    hooks = top_hooks(True)
    owner = getattr(hooks[0], "__self__", None) if hooks else None
    return owner if isinstance(owner, Region | Recomputation) else None
