"""Nested non-reentrant checkpointing with early stop: a drop-in for ``torch.utils.checkpoint`` with ``use_reentrant=False``.

While a region's forward runs, a pair of saved-tensor hooks replaces each tensor that autograd saves by an empty slot.
The first slot that backward unpacks makes the region run again, under hooks that collect what is saved this time.
Forward and recomputation save in the same order, so a slot is found again by its index. Rules 1 to 6 of nesting:

1. A saved tensor belongs to the innermost region alone.   4. Recomputed tensors belong to one backward.
2. An inner region's inputs are saved by its parent.       5. Recomputation stops once what is needed is there.
3. Recomputation starts as if no region were active.       6. Backward may run inside a region.

Each rule is kept where its number stands. A slot is one small object that only the graph owns: the region sees through
a weak reference whether it was cleared. Recomputed tensors are owned by the engine's task, so that they go with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from impls import ambient
from impls.implementation import CAPABILITIES, Implementation
from impls.inputs import Inputs
from impls.sequential import sequential
from impls.versions import Counter, counter

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_early_stop_override: ContextVar[bool | None] = ContextVar("early_stop_override", default=None)
# Generators are process-wide, so recomputations take turns. One lock for all: two could be taken in either order.
_turn = threading.RLock()


class CheckpointError(RuntimeError):
    """A region cannot be recomputed, or its recomputation is not what forward was."""


class _Stop(BaseException):
    """Ends a recomputation (rule 5). Not an Exception, so that ``except Exception`` in user code lets it pass."""


class _Slot:
    """Stands in the graph for a tensor that forward saved: what it looked like, and its version counter."""

    __slots__ = ("__weakref__", "counter", "device", "dtype", "index", "shape", "version")

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index = index
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.counter: Counter = counter(tensor)
        self.version = self.counter._version

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} on {self.device}"

    def resembles(self, tensor: torch.Tensor) -> bool:
        return self.shape == tensor.shape and self.dtype == tensor.dtype and self.device == tensor.device


class _Values(dict[int, torch.Tensor]):
    """The tensors recomputed for one backward. The engine's task owns them as a callback, also when it fails (rule 4)."""

    __slots__ = ("__weakref__",)

    def __call__(self) -> None:
        self.clear()


class _Operators(TorchDispatchMode):
    """Writes down the operators that run, for the message of a debugging CheckpointError."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class _Region:
    """One call of ``checkpoint``: its inputs, its slots, and how to run it again."""

    def __init__(self, function: Callable[..., Any], inputs: Inputs, context: AbstractContextManager[Any]) -> None:
        self.function, self.inputs, self.context = function, inputs, context
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.slots: list[weakref.ref[_Slot]] = []
        self.values: dict[int, weakref.ref[_Values]] = {}
        self.modes = ambient.modes()
        self.states: ambient.GeneratorStates = []
        self.early_stop = self.check = True
        self.complete = False
        self.operators: _Operators | None = None

    def pack(self, tensor: torch.Tensor) -> _Slot:
        slot = _Slot(len(self.slots), tensor)  # rule 1: hooks do not stack, so only the innermost region is asked
        self.slots.append(weakref.ref(slot))
        return slot

    def unpack(self, slot: _Slot) -> torch.Tensor:
        if slot.counter._version != slot.version:
            self.refuse(f"saved tensor {slot.index} ({slot}) was changed in place after it was saved: it is at version "
                        f"{slot.counter._version}, expected version {slot.version}. Clone it before changing it")  # fmt: skip
        task = torch._C._current_graph_task_id()
        tensor = self.take(task, slot)
        if tensor is None:
            with _turn:
                tensor = self.take(task, slot)  # another thread of this backward may have come first
                if tensor is None:
                    tensor = self.recompute(task, slot).pop(slot.index)
        if tensor._version != slot.version:
            self.refuse(f"saved tensor {slot.index} ({slot}) was changed in place during recomputation, unlike in forward")
        return tensor

    def take(self, task: int, slot: _Slot) -> torch.Tensor | None:
        reference = self.values.get(task)
        values = None if reference is None else reference()
        return None if values is None else values.pop(slot.index, None)  # rule 4: it dies as it is unpacked

    def recompute(self, task: int, slot: _Slot) -> _Values:
        """Run the function again. Slots that the graph has cleared are skipped (rule 6)."""
        reference = self.values.get(task)
        if task == -1 or (reference is not None and reference() is not None):
            wanted = {slot.index: slot}  # read outside a backward, or a second time within one
        else:
            wanted = {alive.index: alive for weak in self.slots if (alive := weak()) is not None}
        run = _Run(self, wanted, len(self.slots))
        run.execute()
        values = run.kept
        if task != -1 and len(wanted) > 1:
            self.values = {key: weak for key, weak in self.values.items() if weak() is not None}
            self.values[task] = weakref.ref(values)
            torch.autograd.Variable._execution_engine.queue_callback(values)
        return values

    def refuse(self, reason: str, run: _Run | None = None) -> NoReturn:
        message = f"checkpointed region {self.name!r}: {reason}."
        if self.operators is not None:
            ran = ["", *run.operators.seen] if run is not None and run.operators is not None else ["", "(not run)"]
            message += "\nOperators in forward:" + "\n  ".join(["", *self.operators.seen])
            message += "\nOperators in recomputation:" + "\n  ".join(ran)
        raise CheckpointError(message)


class _Run:
    """One recomputation of a region: what it is to bring, and what it has collected so far."""

    def __init__(self, region: _Region, wanted: dict[int, _Slot], total: int) -> None:
        self.region, self.wanted, self.total = region, wanted, total
        self.last = max(wanted)
        self.kept = _Values()
        self.stopped = False
        self.count, self.unwritten = 0, -1
        self.mismatch: str | None = None
        self.operators = _Operators() if region.operators is not None else None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        index, self.count = self.count, self.count + 1
        kept = tensor.detach() if tensor.requires_grad else tensor
        slot = self.wanted.get(index)
        if slot is not None:
            if self.region.check and not slot.resembles(tensor):
                self.mismatch = f"saved tensor {index} was {slot}, came back as {_Slot(index, tensor)}"
                self.stop()
            self.kept[index] = kept
            if not tensor.requires_grad and tensor._version == 0:
                self.unwritten = torch._C._autograd._get_sequence_nr()
        # An operator may save a buffer of its own that it writes only later, as rrelu does with its noise. Stopping
        # inside that operator would bring the buffer back unwritten, so the stop waits for the next one that saves.
        if self.region.early_stop and index >= self.last and self.unwritten != torch._C._autograd._get_sequence_nr():
            self.stop()  # rule 5
        return kept  # rule 6: packed, so that the recomputed graph can be differentiated

    def stop(self) -> NoReturn:
        self.stopped = True
        raise _Stop

    def execute(self) -> None:
        region = self.region
        changed = region.inputs.changed()
        if changed is not None:
            region.refuse(f"input tensor {changed} was changed in place since it was passed, so forward cannot be repeated. "
                          "Clone it before changing it")  # fmt: skip
        args, kwargs = region.inputs.restore()  # rule 2: unpacking these recomputes the parent first
        present = ambient.generators(tuple(region.inputs.generators)) if region.states else []
        try:
            ambient.set_generators(region.states)
            with ambient.under(region.modes), torch.enable_grad(), self.operators or nullcontext(), region.context:
                _push_hooks(self.pack, _identity)  # rule 3: on top, so no region around backward is asked
                try:
                    region.function(*args, **kwargs)
                except _Stop:
                    pass  # stop() has noted it, since user code may catch even this
                finally:
                    _pop_hooks()
        finally:
            ambient.set_generators(present)
        if self.mismatch is None and self.kept.keys() != self.wanted.keys():
            self.mismatch = f"forward saved {self.total} tensors, recomputation {self.count}"
        if self.mismatch is None and not self.stopped and region.complete and self.count != self.total and region.check:
            self.mismatch = f"forward saved {self.total} tensors, recomputation {self.count}"
        if self.mismatch is not None:
            region.refuse(f"recomputation differs from forward: {self.mismatch}. "
                          "The function must do the same in both runs", self)  # fmt: skip


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def noop_context_fn() -> Contexts:
    """The default of ``context_fn``: no context around forward, none around recomputation."""
    return nullcontext(), nullcontext()


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Switch early stop on or off for the regions whose forward runs inside, whatever their argument says (rule 5)."""
    token = _early_stop_override.set(bool(enable))
    try:
        yield
    finally:
        _early_stop_override.reset(token)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Call ``function(*args, **kwargs)`` and return its value; what it saves for backward is dropped and recomputed.

    Args:
        preserve_rng_state: recompute with forward's random numbers and leave the ambient streams where they were.
        context_fn: gives a context for forward and one for recomputation, entered anew for each recomputation.
        determinism_check: ``"default"`` compares count, shape, dtype and device of what both runs save; ``"none"`` does not.
        debug: write down the operators of both runs, for the message of a CheckpointError.
        early_stop: end a recomputation as soon as what is needed is there.

    Raises TypeError or ValueError for arguments that are not as described, before the function runs; RuntimeError when
    a device is first initialised inside the region; CheckpointError in backward when a saved or passed tensor was
    changed in place, or when the recomputation saves something else than forward did. Not checked: that both runs
    compute the same values, and tensors that the function reads from elsewhere without autograd saving them.
    Source: the nesting rules of PyTorch pull request 90105; early stop as in 96866.
    """
    _validate(function, context_fn, determinism_check, kwargs)
    forward_context, recompute_context = context_fn()
    if not torch.is_grad_enabled():
        with forward_context:
            return function(*args, **kwargs)
    region = _Region(function, Inputs(args, kwargs), recompute_context)
    region.check = determinism_check == "default"
    override = _early_stop_override.get()
    region.early_stop = early_stop if override is None else override
    region.operators = _Operators() if debug else None
    started = ambient.initialised() if preserve_rng_state else None
    if preserve_rng_state:
        region.states = ambient.generators(tuple(region.inputs.generators))
    _push_hooks(region.pack, region.unpack)
    try:
        with region.operators or nullcontext(), forward_context:
            output = function(*args, **kwargs)
            region.complete = True
    finally:
        _pop_hooks()
    if not region.complete:
        region.refuse("the forward context of context_fn swallowed an exception, so there is no value to return")
    if preserve_rng_state and started is None and ambient.initialised() is not None:
        region.refuse("a device was first initialised inside the region, so its random numbers cannot be replayed. "
                      "Initialise it before, or pass preserve_rng_state=False")  # fmt: skip
    if region.inputs.changed() is not None:
        region.inputs.release()  # an input that became an output of the region would keep the region alive
    return output


def _validate(function: Any, context_fn: Any, determinism_check: Any, kwargs: dict[str, Any]) -> None:
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    if not callable(context_fn):
        raise TypeError(f"context_fn is {context_fn!r}; it must be callable and return two context managers")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check is {determinism_check!r}; it must be 'default' or 'none'")
    if kwargs.pop("use_reentrant", False):
        raise ValueError("use_reentrant is True; this checkpoint is not reentrant (see impls.reentrant)")


def checkpoint_sequential(functions: Any, segments: int, input: Any, preserve_rng_state: bool = True) -> Any:
    """Run ``functions`` one after the other in ``segments`` parts, all but the last checkpointed."""
    return sequential(checkpoint, functions, segments, input, preserve_rng_state=preserve_rng_state)


IMPLEMENTATION = Implementation(
    name="nested",
    checkpoint=checkpoint,
    summary="non-reentrant, nests, stops early, checks versions",
    source="PyTorch pull requests 90105 and 96866",
    capabilities=frozenset(CAPABILITIES),
)
