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

from impls import ambient
from impls.implementation import CAPABILITIES, Implementation
from impls.inputs import Inputs
from impls.operators import Operators, listing
from impls.recomputation import Recomputation, Values
from impls.sequential import sequential
from impls.versions import Footprint

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_early_stop_override: ContextVar[bool | None] = ContextVar("early_stop_override", default=None)
# Generators are process-wide, so recomputations that replay them take turns; one that waits for ever gets an error.
_turn = threading.RLock()


class CheckpointError(RuntimeError):
    """A region cannot be recomputed, or its recomputation is not what forward was."""


class _Slot(Footprint):
    """Stands in the graph for a tensor that forward saved. Only the graph owns it."""

    __slots__ = ("__weakref__", "index")

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.index = index


class _Region:
    """One call of ``checkpoint``: its inputs, its slots, and how to run it again."""

    def __init__(self, function: Callable[..., Any], inputs: Inputs, context: AbstractContextManager[Any]) -> None:
        self.function, self.inputs, self.context = function, inputs, context
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.slots: list[weakref.ref[_Slot]] = []
        self.versions: list[int] = []
        self.enclosing = _enclosing()
        self.values: dict[int, weakref.ref[Values]] = {}
        self.modes = ambient.modes()
        self.states: ambient.GeneratorStates = []
        self.lock = threading.RLock()
        self.early_stop, self.check, self.complete = True, True, False
        self.operators: Operators | None = None

    def pack(self, tensor: torch.Tensor) -> _Slot:
        self.saw(tensor)
        slot = _Slot(len(self.slots), tensor)  # rule 1: hooks do not stack, so only the innermost region is asked
        self.slots.append(weakref.ref(slot))
        return slot

    def saw(self, tensor: torch.Tensor) -> None:
        """Note the version of a tensor that is saved here or in a region inside, for comparison when this one is recomputed."""
        self.versions.append(tensor._version)
        if self.enclosing is not None:
            self.enclosing.saw(tensor)

    def unpack(self, slot: _Slot) -> torch.Tensor:
        if slot.counter._version != slot.version:
            self.refuse(f"saved tensor {slot.index} ({slot}) was changed in place after it was saved: it is at version "
                        f"{slot.counter._version}, expected version {slot.version}. Clone it before changing it")  # fmt: skip
        task = torch._C._current_graph_task_id()
        tensor = self.take(task, slot)
        if tensor is None:
            with self.alone(), torch.inference_mode(False):
                tensor = self.take(task, slot)  # another thread of this backward may have come first
                if tensor is None:
                    tensor = self.recompute(task, slot).pop(slot.index)
        if tensor._version != slot.version:
            self.refuse(f"saved tensor {slot.index} ({slot}) was changed in place during recomputation, unlike in forward")
        return tensor

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads from recomputing this region, and from drawing random numbers if they are replayed here."""
        lock = _turn if self.states else self.lock
        if not lock.acquire(timeout=300):
            self.refuse("another thread does not end its recomputation, and those that replay random numbers take turns. "
                        "If functions wait for each other, pass preserve_rng_state=False")  # fmt: skip
        try:
            yield
        finally:
            lock.release()

    def take(self, task: int, slot: _Slot) -> torch.Tensor | None:
        reference = self.values.get(task)
        values = None if reference is None else reference()
        return None if values is None else values.pop(slot.index, None)  # rule 4: it dies as it is unpacked

    def recompute(self, task: int, slot: _Slot) -> Values:
        """Run the function again and bring what is alive; slots that the graph has cleared are skipped (rule 6)."""
        reference = self.values.get(task)
        if task == -1 or (reference is not None and reference() is not None):
            wanted = {slot.index: slot}  # read outside a backward, or a second time within one
        else:
            wanted = {alive.index: alive for weak in self.slots if (alive := weak()) is not None}
        changed = self.inputs.changed()
        if changed is not None:
            self.refuse(f"input tensor {changed} was changed in place since it was passed, so forward cannot be repeated. "
                        "Clone it before changing it")  # fmt: skip
        args, kwargs = self.inputs.restore()  # rule 2: unpacking these recomputes the parent first
        run = Recomputation(wanted, len(self.slots) if self.complete else None, self.versions, early_stop=self.early_stop,
                            check=self.check, log=self.operators is not None)  # fmt: skip
        run.run(lambda: self.function(*args, **kwargs), self.modes, self.states, self.context)  # rule 3 is kept there
        if run.mismatch is not None:
            self.refuse(f"recomputation differs from forward: {run.mismatch}. The function must do the same in both runs",
                        run.operators)  # fmt: skip
        if task != -1 and len(wanted) > 1:
            self.values = {key: weak for key, weak in self.values.items() if weak() is not None}
            self.values[task] = weakref.ref(run.values)
            torch.autograd.Variable._execution_engine.queue_callback(run.values)  # rule 4: also when the task fails
        return run.values

    def refuse(self, reason: str, recomputed: Operators | None = None) -> NoReturn:
        message = f"checkpointed region {self.name!r}: {reason}."
        if self.operators is not None:
            message += listing("Operators in forward", self.operators)
            message += listing("Operators in recomputation", recomputed)
        raise CheckpointError(message)


def _enclosing() -> _Region | Recomputation | None:
    """The region whose forward or recomputation is under way here, if no other hooks are in between."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    owner = getattr(hooks[0], "__self__", None) if hooks else None
    return owner if isinstance(owner, _Region | Recomputation) else None


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
    region.operators = Operators() if debug else None
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
        region.enclosing = None
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
