"""One recomputation of a region: the function runs again, and what it saves this time is collected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from impls.nested.inputs import Inputs, Places, capture_inner_inputs, count_alike
from impls.nested.operator_log import OperatorLog
from impls.nested.user_hooks import HookOwner, push_hooks_of
from impls.state.hook_registrations import has_removed_hooks_for_now
from impls.state.modes import Modes, process_wide
from impls.state.module_hooks import is_inside_hooks_always_called
from impls.state.restoration import Restoration
from impls.tensors.attributes import alias_with_own_version
from impls.tensors.origins import Origin, has_equal_values
from impls.tensors.snapshots import Snapshot
from impls.tensors.versions import (
    TensorMetadata,
    any_tensor_metadata,
    describe,
    detach_without_modes,
    tensor_metadata,
)
from impls.torch_private import (
    TorchDispatchMode,
    dispatch_mode_count,
    dispatch_modes,
    next_sequence_number,
    pop_hooks,
    push_dispatch_mode,
    set_grad_enabled,
    set_version_counters,
)

NO_CONTEXT = nullcontext()  # the one that options stand for by default, and that is not worth entering


class StopRecomputation(BaseException):
    """Ends a recomputation early. Not an Exception, so that ``except Exception`` in user code lets it pass."""


def _find_late_write(slots: Sequence[tuple[int, Any, TensorMetadata]], last: int) -> int:
    """The index, at ``last`` or before it, of what may be a buffer that its operator writes after it has saved it; or -1.

    Of PyTorch's operators that is rrelu_with_noise alone (its derivatives.yaml, searched for operators that save an argument
    which they write; of a batch norm's running statistics backward reads none that were written). Its node saves the noise,
    which cannot require grad, and next the input, which does and is of the same shape, dtype and device. Others that look so,
    such as atan2, maximum and clamp with a constant, run their own kernel once more than they have to.
    """
    if slots[last][2][4] and (not last or slots[last - 1][2][4]):
        return -1  # nearly always
    for index in (last - 1, last):
        if 0 <= index < len(slots) - 1:
            noise, given = slots[index][2], slots[index + 1][2]
            if given[4] and not noise[4] and given[:3] == noise[:3]:
                return index
    return -1


class RecomputedTensors(dict[int, torch.Tensor]):
    """Recomputed tensors by index, for the backward ``task``. Callable, so that the engine can own them as a final callback."""

    __slots__ = ("__weakref__", "task")
    task: int

    def __call__(self) -> None:
        self.clear()


class _StopAfterOperator(TorchDispatchMode):
    """Ends a recomputation once the operator that is under way is over: what its kernel calls makes no node of its own."""

    supports_higher_order_operators = True

    def __init__(self, run: Recomputation) -> None:
        super().__init__()
        self.run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if next_sequence_number() != self.run.node:
            self.run.stop()
        return func(*args, **(kwargs or {}))

    def leave(self) -> None:
        """Leave it, also where it was entered in a backward inside the run, which has put back the modes that it found."""
        if all(mode is not self for mode in dispatch_modes()):
            push_dispatch_mode(self)
        self.__exit__(None, None, None)


class Recomputation(HookOwner):
    """What one run is to recompute, and what it has recomputed.

    ``slots`` stand for the tensors that forward saved, as (index, probe, metadata); ``wanted`` has None in place of those that
    are not needed. ``inner_versions`` are those of tensors that regions inside saved, ``inner_places`` where those were passed
    tensors, ``origins`` those of tensors that may have been there before, by index; by -1, -2 and so on for those inside.
    ``complete`` says whether that is all or forward has not ended yet. ``unpack_later`` gives a saved tensor, by its index,
    once this run is over. It must not own the region: the recomputed graph owns it, and the region may own what leads there, as
    a list in the function's closure into which the function puts a result. After ``run``, which returns the recomputed tensors,
    ``mismatch`` says in what the run was not what forward was, or is None.
    """

    def __init__(
        self,
        wanted: Sequence[Any],
        slots: Sequence[Any],
        inner_versions: Sequence[int],
        inner_places: Sequence[Places],
        origins: Mapping[int, Origin],
        unpack_later: Callable[[int], torch.Tensor],
        *,
        complete: bool,
        early_stop: bool,
        check: bool,
        log: bool,
    ) -> None:
        self.wanted, self.slots, self.inner_versions, self.origins = wanted, slots, inner_versions, origins
        self.inner_places, self.inner_calls = inner_places, 0
        self.put_off: list[str | None] | None = None  # what stop() was called for while it has to wait
        self.unpack_later = unpack_later
        self.complete, self.check = complete, check
        self.slot_count = len(wanted)  # a forward on another thread may save more meanwhile
        self.last = len(wanted) - 1
        while wanted[self.last] is None:
            self.last -= 1
        self.late_write = _find_late_write(slots, self.last) if early_stop else -1
        self.stop_index = float("inf") if not early_stop else self.last if self.late_write < 0 else self.late_write
        self.stop_mode: _StopAfterOperator | None = None
        self.values = RecomputedTensors()
        self.count, self.inner_count, self.node, self.dispatch_modes = 0, 0, -1, 0
        self.stopped = self.runs_on = False
        self.mismatch: str | None = None
        self.failed = False
        self.modes: Modes | None = None
        self.operator_log = OperatorLog() if log else None
        self.snapshot: Snapshot | None = None  # of what there was when the run was to end, but went on

    def pack(self, tensor: torch.Tensor) -> Any:
        index = self.count
        self.count = index + 1
        is_wanted = False
        if index < self.slot_count:
            origin = self.origins.get(index)
            if origin is not None and origin.has_moved(tensor):
                tensor = self.accept_replacement(index, tensor, origin)
            else:
                try:
                    alike = tensor_metadata(tensor) == self.slots[index][2]
                except RuntimeError:  # of a nested tensor, which has no shape
                    alike = False
                if not alike:
                    self.compare_metadata(index, tensor, origin)
            if is_wanted := self.wanted[index] is not None:
                self.values[index] = tensor
        if index >= self.stop_index:
            self.stop() if self.late_write < 0 else self.stop_after_operator(index)  # rule 5
        # Rule 6: packed, so that the recomputed graph can be differentiated. The index will do for what is wanted: it costs
        # nothing, and no tensor is then kept by a node that the tensor keeps.
        if is_wanted:
            return index
        return detach_without_modes(tensor) if tensor.requires_grad else tensor

    def unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        tensor = self.values.get(packed)
        return self.unpack_later(packed) if tensor is None else tensor

    def compare_metadata(self, index: int, tensor: torch.Tensor, before: Origin | None = None) -> None:
        """A tensor's metadata are not what they were in forward. At another version, it was changed since forward saved it.

        Versions of regions inside are compared too: what such a region returns is recomputed from what it reads, even
        where nothing of its own is unpacked. So some programs are refused that plain accepts: those that rewrite a buffer
        and then save it, and those that change a weight whose own part of the backward is over. What they read in the
        recomputation is not what forward read, and whether that matters cannot be told here.

        A leaf may come back where forward saved what some node had passed on, and the other way round, if it is known to be
        ``before``, the tensor that forward saved, or a view of it. Autograd takes no more than the values from what it is
        handed: the node behind them is always forward's, also where gradients of gradients are asked for.
        """
        expected, found = self.slots[index][2], any_tensor_metadata(tensor)
        if found == expected:
            return
        self.require_version(tensor, expected[3])
        if tensor.layout is torch.jagged and found[1:] == expected[1:]:
            self.stop(f"saved tensor {index} was a nested tensor of shape {list(expected[0])}, came back as {list(found[0])}. "
                      "One of jagged layout has another ragged size whenever its offsets are made anew: make them outside, and "
                      "pass it or them as an argument")  # fmt: skip
        if found[:5] == expected[:5] and before is not None and before.is_read_again(tensor):
            return
        others = expected[4:] != found[4:]  # operators save other tensors than they did, from here on
        if self.check and (self.wanted[index] is not None or others):
            self.stop(f"saved tensor {index} was {describe(expected)}, came back as {describe(found)}")

    def saved_count(self) -> int:
        return self.count

    def capture_inner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The arguments of a region inside. If they hold more tensors than in forward, or fewer, later slots are others'.

        That shows only once all are saved, so until then nothing ends the run, not even one tensor too many.
        """
        start, self.put_off = self.count, []
        try:
            inputs, places = capture_inner_inputs(args, kwargs, self)
        finally:
            put_off, self.put_off = self.put_off, None
        self.inner_calls += 1
        if self.inner_calls <= len(self.inner_places):
            self.compare_places(start, self.inner_places[self.inner_calls - 1], places)
        if put_off:
            self.stop(put_off[0])
        return inputs

    def compare_places(self, start: int, before: Places, now: Places) -> None:
        """End the run if there are more tensors or fewer, and one is needed from the first on that is elsewhere."""
        count, expected = (each[-1][1] if each else 0 for each in (now, before))
        if count != expected and start + count_alike(before, now) <= self.last:
            self.stop(f"checkpoint was called inside it (call {self.inner_calls}) with {expected} tensors in its arguments, "
                      f"now with {count}. A list or other container that was passed inside alone may have changed since: pass "
                      "it to the region around, too")  # fmt: skip

    def on_inner_save(self, tensor: torch.Tensor, origin: Origin | None) -> None:
        """A tensor was saved in a region inside this one."""
        index, self.inner_count = self.inner_count, self.inner_count + 1
        if index >= len(self.inner_versions):
            return
        before = self.origins.get(~index)
        if before is None or not before.has_moved(tensor) or not self.stands_in(tensor, before):
            self.require_version(tensor, self.inner_versions[index])

    def require_version(self, tensor: torch.Tensor, version: int) -> None:
        if tensor._version != version:
            self.stop(f"a saved tensor ({describe(any_tensor_metadata(tensor))}) is at version {tensor._version}, and was at "
                      f"version {version} in forward: it was changed in place since, or another is in its place")  # fmt: skip

    def accept_replacement(self, index: int, tensor: torch.Tensor, before: Origin) -> torch.Tensor:
        """What to keep of a tensor that is not where the one in forward was; its version says nothing of that one's."""
        expected, found = self.slots[index][2], any_tensor_metadata(tensor)
        if found == expected:
            if self.check:
                self.stands_in(tensor, before)
        elif found[4] == expected[4] and self.stands_in(tensor, before):
            tensor = alias_with_own_version(tensor)
            set_version_counters((tensor,), (expected[3],))
        else:
            self.compare_metadata(index, tensor)
        return tensor

    def stands_in(self, tensor: torch.Tensor, before: Origin) -> bool:
        """Whether a tensor is known to have the values of the one that was there in forward. If it has others, the run ends."""
        equal = has_equal_values(before, tensor)
        if equal is False and self.check:
            cast = "the leaf that it is cast from was changed or" if before.leaf is not None else "it was"
            self.stop(f"a saved tensor ({describe(any_tensor_metadata(tensor))}) has other values: {cast} replaced since, or "
                      "the function has made it, kept it somewhere, and now computes other values. Replace it after backward, "
                      "or pass it as an argument; determinism_check='none' lets the function compute other values")  # fmt: skip
        return bool(equal)

    def stop(self, mismatch: str | None = None) -> None:
        """End the run, for a mismatch or as all is there. Once only: user code that catches it, or is left by it, may go on.

        A function that has set process-wide modes runs on to its end, where it sets them back; so does one that has removed a
        hook, where it may register it anew, and one inside of a module with hooks that torch calls after any Exception, which
        this is not.
        """
        if self.put_off is not None:
            self.put_off.append(mismatch)
        elif not self.stopped:
            self.stopped, self.mismatch = True, mismatch
            self.runs_on = self.modes is not None and process_wide() != self.modes.process_wide
            self.runs_on = self.runs_on or has_removed_hooks_for_now()
            self.runs_on = self.runs_on or is_inside_hooks_always_called(sys._getframe(1), _COLLECT)
            if not self.runs_on:
                raise StopRecomputation
            if mismatch is None:
                self.snapshot = Snapshot(self.values)  # which what is left of the function may change in place

    def stop_after_operator(self, index: int) -> None:
        """All that is needed is there: end the run, but not before the operator under way has written what it saved."""
        node = next_sequence_number()  # one operator makes one node
        if index == self.late_write:
            self.node = node
        elif node != self.node:
            self.stop()
        if index >= self.last and self.stop_mode is None and dispatch_mode_count() == self.dispatch_modes:
            self.stop_mode = _StopAfterOperator(self)
            self.stop_mode.__enter__()

    def run(
        self,
        function: Callable[[], Any],
        restoration: Restoration,
        context: AbstractContextManager[Any],
    ) -> RecomputedTensors:
        """Run in forward's surroundings."""
        values, due = self.values, len([slot for slot in self.wanted if slot is not None])
        self.modes = restoration.wanted
        with restoration:
            if self.operator_log is None and context is NO_CONTEXT:
                self._collect(function)
            else:
                with self.operator_log or NO_CONTEXT, context:
                    self._collect(function)
            restoration.failed = self.failed
        if self.mismatch is None and len(values) < due:
            self.mismatch = f"forward saved {self.last + 1} tensors or more, recomputation {self.count}"
        if self.mismatch is None and self.check and self.complete and not self.stopped and self.count != self.slot_count:
            self.mismatch = f"forward saved {self.slot_count} tensors, recomputation {self.count}"
        return values

    def _collect(self, function: Callable[[], Any]) -> None:
        graded, self.dispatch_modes = torch.is_grad_enabled(), dispatch_mode_count()
        # Rule 3: hooks do not stack, so with these on top nothing that is active around backward is asked.
        push_hooks_of(self)
        try:
            set_grad_enabled(True)
            function()
        except StopRecomputation:
            pass  # stop() has noted it
        except Exception:  # TorchScript's interpreter makes a RuntimeError of what passes through it
            if not self.stopped:
                raise
            self.failed = self.runs_on  # its tail is of no use, but it has not set modes back
        finally:
            if self.stop_mode is not None:
                self.stop_mode.leave()
            set_grad_enabled(graded)
            pop_hooks()
            self.user_hooks = None
            values, snapshot, self.snapshot = self.values, self.snapshot, None
            # The recomputed graph owns this object, and is not to own them.
            self.values, self.wanted, self.slots, self.inner_places, self.origins = RecomputedTensors(), (), (), (), {}
            if snapshot is not None:
                values.update({key: one for key, one in snapshot.changed().items() if key in values})


_COLLECT = Recomputation._collect.__code__
