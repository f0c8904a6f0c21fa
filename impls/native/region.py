"""What the hooks in C++ leave to Python: to recompute a region, and all that is rare, which is nested's.

A ``Region`` and a ``Recomputation`` of C++ take the place of nested's classes of these names; ``_Comparison`` gives nested's
comparisons the data of a run in C++. Nothing is built before ``require_extension`` is called.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from impls.native.extension import load_extension
from impls.native.origins import keeps_leaf, make_origin_from_place, metadata_of, note_origin, settle_origins
from impls.nested import recomputation as nested_recomputation
from impls.nested import region as nested_region
from impls.nested.inputs import _NO_CONTAINERS, Inputs, states_to_fill
from impls.nested.kept_containers import ContainersOfRun, ReusedContainer
from impls.nested.later_hooks import silence_later_hooks
from impls.nested.operator_log import OperatorLog
from impls.nested.recomputation import NO_CONTEXT, Recomputation, StopRecomputation
from impls.nested.region import stand_in
from impls.state import advisory_locks, modes, random_numbers, streams
from impls.state.accelerators import accelerator
from impls.state.hook_registrations import has_removed_hooks_for_now, undo_registrations
from impls.state.module_hooks import is_inside_hooks_always_called
from impls.state.process_lock import PROCESS_LOCK, DisturbedError, ProcessLockError, run_undisturbed
from impls.state.restoration import Restoration, current_restoration
from impls.state.threads import current_thread
from impls.tensors.closures import closed_over_results, find_changed
from impls.tensors.packed import Packed
from impls.tensors.snapshots import Snapshot
from impls.tensors.versions import TensorMetadata, any_tensor_metadata, describe, detach_without_modes
from impls.torch_private import (
    code_of_hooked_call,
    current_autograd_node,
    current_graph_exec_group,
    queue_callback,
    remove_thread_object,
    run_frames_untraced,
)

extension: Any = None  # the module in C++, once it is there
_FIRST = threading.Lock()

# What regions have recomputed for a group of backward calls, as in nested.
_by_group: MutableMapping[Any, weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()


def require_extension() -> Any:
    """The extension in C++, built and told what it shares with Python if need be. Raises NativeUnavailableError."""
    global extension
    if extension is None:
        with _FIRST:
            if extension is None:
                module: Any = load_extension()
                kind = accelerator()
                module.has_accelerator = kind is not None
                module.setup(dict(_shared()), torch.device(kind or "cpu"))
                extension = module
    return extension


def refuse(region: Any, reason: str, recomputed: OperatorLog | None = None) -> NoReturn:
    """Raise the CheckpointError that nested raises."""
    nested_region.Region.refuse(region, reason, recomputed)


def capture_states(region: Any) -> None:
    """Note the states of the generators that the region may draw from, if that is not the CPU's alone, which C++ has noted."""
    explicit = () if region.inputs is None else tuple(region.inputs.generators)
    if extension.has_accelerator or explicit:
        region.states = random_numbers.capture_states(explicit)


def recompute_locked(region: Any, task: int, index: int, disturbed: bool) -> torch.Tensor:
    """Recompute. Other threads that want to recompute this region wait meanwhile, unless one would wait for ever.

    ``disturbed`` says that it was tried once, and another recomputation disturbed it.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return recompute_locked(region, task, index, disturbed)
    around = recompute_around(region, task)
    tensor: torch.Tensor = _recompute_values(region, task, index, disturbed=disturbed).pop(index)
    around.clear()
    return tensor


run_frames_untraced(recompute_locked.__code__)  # which compiled autograd calls


def recompute_around(region: Any, task: int) -> list[Any]:
    """Recompute the regions around this one's parent, as far as that needs them, from the outermost on (rule 2).

    The parent itself is recomputed when the inputs are unpacked. If all were, each would be recomputed within the recomputation
    of the one inside it, and regions nested as deeply as Python's recursion limit allows in forward would exceed it in
    backward. Within another recomputation, which has values of its own, all are left to the unpacking. Returns what must be
    kept until this region is recomputed.
    """
    missing: list[Any] = []
    if task == -1 or current_restoration() is not None:
        return missing
    while region.first_changed() < 0 and (slot := _missing_input(region, task)) is not None:
        missing.append(slot)
        region = slot.region
    kept = []
    for slot in missing[:0:-1]:
        kept.append(_recompute_values(slot.region, task, slot.index))
        slot.region.keep_values(task, kept[-1])
    return kept


def _missing_input(region: Any, task: int) -> Any:
    """The first slot among the inputs whose tensor the region around has not recomputed yet, or None."""
    for packed in () if region.inputs is None else region.inputs.packed or ():
        slot: Any = _saved_data(packed.saved, packed.node) if type(packed) is Packed else None
        if type(slot) is extension.Slot:
            values = find_values(slot.region, task)
            if values is None or slot.index not in values:
                return slot
    return None


def _saved_data(saved: Any, node: Any) -> Any:
    """What hooks have made of an input; None if it was not saved, or not through hooks."""
    saved = saved if node is None else node.grad_fn._raw_saved_tensors[0]
    return None if saved is None else saved.data


def _recompute_values(region: Any, task: int, index: int, *, disturbed: bool = False) -> Any:
    """What a region recomputes for a saved tensor, with the values of others that the graph still has."""
    tries = iter([DisturbedError()] if disturbed else [])

    def attempt() -> Any:
        for error in tries:
            raise error
        return recompute(region, task, index)

    begun = advisory_locks.acquire(id(region))
    try:
        values = find_values(region, task)
        if values is None or index not in values:  # another thread of this backward may have come first
            values = run_undisturbed(attempt)
        return values
    except ProcessLockError as error:
        refuse(region, str(error))
    finally:
        if begun:
            advisory_locks.release(id(region))


def find_values(region: Any, task: int) -> Any:
    """What is left of a recomputation for a backward, or for another one of the same group."""
    values = region.find_values(task)
    if values is None and task != -1 and (group := current_graph_exec_group()) is not None:
        regions = _by_group.get(group)
        values = None if regions is None else regions.get(region)
        if values is not None:
            region.keep_values(task, values)
    return values


def find_wanted(region: Any, task: int, index: int, values: Any) -> list[bool] | None:
    """Which saved tensors to recompute, as nested's ``find_wanted`` tells; None for all that the graph still has."""
    if task == -1 or (values is not None and values.task == task):
        asked = _saved_by_same_node(region, index)
        return [index in asked for index in range(region.saved_count())]
    return None if values is None else [index not in values for index in range(region.saved_count())]


def _saved_by_same_node(region: Any, index: int) -> set[int]:
    """As nested's ``_slots_of_same_node``: the indices of what the node that is being executed has saved in this region."""
    node = current_autograd_node()
    try:
        slots = [one.data for one in getattr(node, "_raw_saved_tensors", ())]
    except RuntimeError:  # a node that has freed its own, while a hook reads those of another one
        slots = []
    own = {slot.index for slot in slots if type(slot) is extension.Slot and slot.region is region}
    return own if index in own else {index}


def keep_until_the_end(region: Any, task: int, values: Any) -> None:
    """Have what was recomputed owned by the backward that it is for, or by the group that this is one of (rule 4)."""
    group = current_graph_exec_group()
    if group is None and len(values) == 1:  # which is about to be unpacked
        return
    region.keep_values(task, values)
    values.task = task
    if group is None:
        queue_callback(values)  # the engine lets go of it also when the backward fails
    else:
        _by_group.setdefault(group, weakref.WeakKeyDictionary())[region] = values


def recompute(region: Any, task: int, index: int) -> Any:
    """Run the function again. Returns what it recomputed, with what is left of earlier runs for the same backward."""
    left = find_values(region, task)
    run = extension.begin_recomputation(region, find_wanted(region, task, index, left))
    try:
        values = _recompute(region, run)
    finally:
        run.forget_region()
    if left is not None:
        left.update(values)
        left.task = task
        return left
    if task != -1:
        keep_until_the_end(region, task, values)
    return values


def _recompute(region: Any, run: Any) -> Any:
    """What a run has recomputed. Raises CheckpointError if that is not what forward saved."""
    changed = region.first_changed()
    if changed >= 0:
        refuse(region, f"input tensor {changed} was changed in place since it was passed, so forward cannot be repeated. "
                       "Clone it before changing it")  # fmt: skip
    if region.changed_name is not None and region.check:
        refuse(region, f"the function changed {region.changed_name!r} in place, a tensor that it reads and was not passed, so "
                       "forward cannot be repeated. Clone it before changing it")  # fmt: skip
    inputs: Inputs | None = region.inputs
    reused: Sequence[ReusedContainer] = ()
    filled: Sequence[ReusedContainer] = ()
    registering = region.registers_hooks()
    tensors: Sequence[torch.Tensor]
    if inputs is None:
        args, kwargs, tensors = region.args, region.kwargs, region.tensors()
    else:
        args, kwargs, tensors, reused, filled = inputs.restore()  # rule 2: unpacking these recomputes the parent first
    with ContainersOfRun(reused):
        if any(map(nested_region._is_from_ended_vmap, tensors)):
            refuse(region, "it was called under torch.func.vmap, which is over, so forward cannot be repeated. Call vmap "
                           "inside the region")  # fmt: skip
        silenced = silence_later_hooks(tensors, region.hooks_at_start, region.hooks_at_end)
        below = stand_in(region.pass_through)
        with silenced, streams.use_stream(region.stream), undo_registrations(tensors, registering=registering), below:
            states = [*region.states, *states_to_fill(filled)]
            restoration = Restoration(region.modes, states, region.modes_after)
            with restoration:
                values = _run(run, region, args, kwargs)
                restoration.failed = run.failed
    refuse_difference(region, run, values)
    return values


def _run(run: Any, region: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    run.operator_log = None if region.operator_log is None else OperatorLog()
    with run.operator_log or NO_CONTEXT, region.context:
        return run.run(region.function, args, kwargs)


def refuse_difference(region: Any, run: Any, values: Any) -> None:
    """Refuse what a run has recomputed, if it is not what forward saved."""
    mismatch = run.mismatch or _difference(run, region, values)
    if mismatch is not None:
        refuse(region, f"recomputation differs from forward: {mismatch}. The function must do the same in both runs",
               run.operator_log)  # fmt: skip


def _difference(run: Any, region: Any, values: Any) -> str | None:
    """How a run that has ended, or was stopped, differs from forward; None if it does not."""
    if len(values) < run.due:
        return f"forward saved {run.last + 1} tensors or more, recomputation {run.count}"
    if region.check and run.complete and not run.stopped and run.count != run.slot_count:
        return f"forward saved {run.slot_count} tensors, recomputation {run.count}"
    return None


class _Slots:
    """The slots of a region as nested has them."""

    def __init__(self, region: Any) -> None:
        self.region = region

    def __len__(self) -> int:
        return int(self.region.saved_count())

    def __getitem__(self, index: int) -> tuple[int, None, TensorMetadata]:
        return index, None, metadata_of(self.region, index)


class _Wanted:
    """What a run is to recompute, as nested has it: None in place of what is not needed."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __getitem__(self, index: int) -> bool | None:
        return self.run.is_wanted(index) or None


class _Comparison(Recomputation):
    """Nested's comparisons of a recomputation with forward, for a run in C++."""

    def __init__(self, run: Any) -> None:
        region = run.region
        self.run_in_cpp = run
        self.slots, self.wanted = _Slots(region), _Wanted(run)  # type: ignore[assignment]
        self.inner_versions, self.origins, self.check = region.inner_versions, region.origins or {}, region.check
        self.inner_places, self.inner_calls = region.inner_places or [], 0
        self.late_write, self.last, self.dispatch_modes = run.late_write, run.last, run.dispatch_modes
        self.node, self.stop_mode = -1, None

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many tensors the run has saved so far."""
        return int(self.run_in_cpp.count)

    @property
    def put_off(self) -> list[str | None] | None:
        """What the run was to be ended for while it has to wait."""
        put_off: list[str | None] | None = self.run_in_cpp.put_off
        return put_off

    @put_off.setter
    def put_off(self, reasons: list[str | None] | None) -> None:
        self.run_in_cpp.put_off = reasons

    def replace(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """What to keep of a tensor that may not be where the one in forward was, or does not look like it."""
        origin = self.origins.get(index) or make_origin_from_place(self.run_in_cpp.region, index)
        if origin.has_moved(tensor):
            return self.accept_replacement(index, tensor, origin)
        if any_tensor_metadata(tensor) != self.slots[index][2]:
            self.compare_metadata(index, tensor, origin)
        return tensor

    def compare_inner(self, index: int, tensor: torch.Tensor) -> None:
        """Compare a tensor that a region inside saved."""
        self.inner_count = index
        self.on_inner_save(tensor, None)

    def stop(self, mismatch: str | None = None) -> None:
        self.run_in_cpp.stop(mismatch)

    def end(self) -> None:
        """The run is over."""
        if self.stop_mode is not None:
            self.stop_mode.leave()
            self.stop_mode = None


def find_late_write(region: Any, last: int) -> int:
    """As nested's, for slots that are in C++."""
    return nested_recomputation._find_late_write(_Slots(region), last)  # type: ignore[arg-type]


def refuse_changed(region: Any, index: int, now: int, recomputed: bool) -> NoReturn:
    """Refuse a saved tensor that is at another version than it was."""
    metadata = metadata_of(region, index)
    if recomputed:
        told = nested_region.changed_again(early_stop=region.early_stop)
        refuse(region, f"saved tensor {index} ({describe(metadata)}) {told}")
    refuse(region, f"saved tensor {index} ({describe(metadata)}) was changed in place after it was saved: it is at "
                   f"version {now}, expected version {metadata[3]}. Clone it before changing it")  # fmt: skip


def put_modes_back(run: Any, region: Any, depth: int, failed: bool) -> None:
    """Undo what a recomputation changed of the modes, as a ``Restoration`` does on exit."""
    modes.restore_autocast(region.modes, depth)
    if modes.process_wide() != run.found:
        Restoration.put_modes_back(run, region.modes.process_wide, failed=failed)


def _shared() -> Iterator[tuple[str, Any]]:
    yield "StopRecomputation", StopRecomputation
    yield "RemovableHandle", RemovableHandle
    yield "default_generator", torch.default_generator
    yield "atoms", _NO_CONTAINERS
    yield "capture_inputs", Inputs
    yield "capture_inner", nested_region.Region.capture_inner
    yield "current_modes", modes.current_modes
    yield "pass_through", modes.pass_through
    yield "process_wide", modes.process_wide
    yield "tensor_metadata", any_tensor_metadata
    yield "detach_without_modes", detach_without_modes
    yield "note_origin", note_origin
    yield "settle_origins", settle_origins
    yield "recompute", recompute_locked
    yield "refuse_changed", refuse_changed
    yield "make_comparison", _Comparison
    yield "find_late_write", find_late_write
    yield "no_context", NO_CONTEXT
    yield "running", advisory_locks._holders
    yield "current_thread", current_thread
    yield "current_graph_exec_group", current_graph_exec_group
    yield "process_lock", PROCESS_LOCK
    yield "remove_thread_object", remove_thread_object
    yield "put_modes_back", put_modes_back
    yield "inherit", Restoration.inherit
    yield "refuse_difference", refuse_difference
    yield "code_of_hooked_call", code_of_hooked_call
    yield "is_inside_hooks_always_called", is_inside_hooks_always_called
    yield "Size", torch.Size
    yield "closed_over_results", closed_over_results
    yield "find_changed", find_changed
    yield "has_removed_hooks_for_now", has_removed_hooks_for_now
    yield "unpack_later", nested_region.unpack_later
    yield "Snapshot", Snapshot
    yield "Parameter", torch.nn.Parameter
    yield "keeps_leaf", keeps_leaf
