"""The public functions of nested checkpointing, their options, and the record by which it presents itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils.checkpoint import SAC_IGNORED_OPS as SAC_IGNORED_OPS
from torch.utils.checkpoint import CheckpointPolicy as CheckpointPolicy
from torch.utils.checkpoint import GraphExecGroup as GraphExecGroup
from torch.utils.checkpoint import SelectiveCheckpointContext as SelectiveCheckpointContext
from torch.utils.checkpoint import create_selective_checkpoint_contexts as create_selective_checkpoint_contexts

from impls.compiled import is_compiling, trace, traced_or_eager
from impls.implementation import CAPABILITIES, Implementation
from impls.known_failures import (
    CACHED,
    CAPTURED,
    KEPT_INSIDE,
    LEFT_EARLY,
    RUN_TWICE,
    SPECIALISED,
    UNPACKED,
    WITHIN_BUDGET,
)
from impls.nested.limits import COMPUTED_ANEW, COUNTED, MADE_ANEW
from impls.nested.operator_log import OperatorLog
from impls.nested.recomputation import NO_CONTEXT
from impls.nested.region import CheckpointError as CheckpointError
from impls.nested.region import Region
from impls.nested.user_hooks import push_hooks_of, set_respect_hooks
from impls.policy_limits import BYPASSED, KEPT
from impls.sequential import sequential
from impls.state import accelerators, modes, random_numbers
from impls.torch_private import POLICIES_ASK_FOR_HOOKS, pop_hooks

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_overrides: ContextVar[tuple[bool | None, bool | None]] = ContextVar("overrides", default=(None, None))  # of early_stop, debug
# The contexts that are active in any thread and ask for what a graph of torch.compile cannot do, where the compiler sees them.
_overriding: list[str] = []


def noop_context_fn() -> Contexts:
    """The default of ``context_fn``: no context around forward, none around recomputation."""
    return NO_CONTEXT, NO_CONTEXT


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Switch early stop on or off for the regions whose forward runs inside, whatever their argument says (rule 5)."""
    with _override(bool(enable), _overrides.get()[1], "" if enable else "set_checkpoint_early_stop"):
        yield


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Switch ``debug`` on or off for the regions whose forward runs inside, whatever their argument says; None leaves it."""
    debug = None if enabled is None else bool(enabled)
    with _override(_overrides.get()[0], debug, "set_checkpoint_debug_enabled" if debug else ""):
        yield


@contextmanager
def _override(early_stop: bool | None, debug: bool | None, refused_by: str) -> Iterator[None]:
    """Set both; ``refused_by`` is the name by which a region of a compiled graph refuses what is set, "" if it does not."""
    token = _overrides.set((early_stop, debug))
    refusals = [refused_by] if refused_by else []
    _overriding.extend(refusals)
    try:
        yield
    finally:
        for name in refusals:
            _overriding.remove(name)
        _overrides.reset(token)


@traced_or_eager
def checkpoint(
    function: Callable[..., Any] | None = None,
    *args: Any,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Call ``function(*args, **kwargs)`` and return its value; what it saves for backward is dropped and recomputed.

    Without a function, ``checkpoint(**options)`` is a decorator, for functions and methods.

    Args:
        preserve_rng_state: recompute with forward's random numbers and leave the ambient streams where they were, for which
            recomputations on several threads take turns.
        context_fn: gives a context for forward and one for recomputation, entered anew for each recomputation.
        determinism_check: ``"default"`` compares count, shape, dtype, device and requires_grad of what both runs save;
            ``"none"`` does not.
        debug: write down the operators of both runs, for the message of a CheckpointError.
        early_stop: end a recomputation as soon as what is needed is there.
        respect_saved_tensors_hooks: hand what a policy of ``create_selective_checkpoint_contexts`` keeps to the user's hooks
            for saved tensors; False does not, and neither does None, with a warning of PyTorch's. It means nothing for other
            contexts.

    Raises TypeError or ValueError for arguments that are not as described, before the function runs; NotImplementedError
    for hooks to be respected before torch 2.14; CheckpointError when
    a device is first initialised inside the region, or random numbers are to be preserved while a CUDA graph is captured;
    CheckpointError in backward when a saved or passed tensor was changed in place, or when the recomputation saves
    something else than forward did, or a tensor from outside that was replaced by one with other values. Not checked: that
    both runs compute the same values, and tensors that the function reads from elsewhere without autograd saving them.
    Buffers that a module updates in forward are updated again.
    While ``torch.compile`` traces a call, see :func:`impls.compiled.trace`.
    Source: the nesting rules of PyTorch pull request 90105; early stop as in 96866.
    """
    options = preserve_rng_state, context_fn, determinism_check, debug, early_stop, respect_saved_tensors_hooks
    if function is None and not args:
        return _decorator(options, kwargs)
    _validate(function, options, kwargs)
    run = _trace if is_compiling() else _run
    return run(function, args, kwargs, *options)


class _Decorated:
    """A function that is called through a checkpoint each time; a method where it is an attribute of a class."""

    def __init__(self, function: Callable[..., Any], options: tuple[Any, ...]) -> None:
        has_own = isinstance(function, FunctionType | MethodType | _Decorated)  # what a module has is its state instead
        functools.update_wrapper(self, function, updated=functools.WRAPPER_UPDATES if has_own else ())
        self._function, self._options = function, options

    @traced_or_eager
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        run = _trace if is_compiling() else _run
        return run(self._function, args, kwargs, *self._options)

    @traced_or_eager  # where Dynamo would begin with this frame, the call of a module with a decorated forward never ends
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bind = None if instance is None else getattr(self._function, "__get__", None)
        return self if bind is None else _Decorated(bind(instance, owner), self._options)

    def __eq__(self, other: object) -> bool:
        """Equal as functions and methods are: each access to a method makes a new object, and these are equal."""
        if self is other or not isinstance(other, _Decorated) or not isinstance(self._function, MethodType):
            return self is other
        return bool(self._function == other._function) and self._options == other._options

    def __hash__(self) -> int:
        return hash(self._function) if isinstance(self._function, MethodType) else super().__hash__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled by name if it is found there in the place of its function, as functions and methods are."""
        module, path = vars(self).get("__module__", ""), vars(self).get("__qualname__", "")
        found: Any = sys.modules.get(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is self:
            return path
        instance = getattr(self._function, "__self__", None)
        method = getattr(instance, name, None) if isinstance(getattr(type(instance), name, None), _Decorated) else None
        if isinstance(method, _Decorated) and method._function == self._function:
            return getattr, (instance, name)
        return super().__reduce_ex__(protocol)


def _decorator(options: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Callable[..., Any]], _Decorated]:
    _validate(_Decorated, options, kwargs)
    if kwargs:
        raise ValueError(f"{', '.join(kwargs)}: no option of checkpoint, and without a function it takes no others. "
                         "Pass arguments when the decorated function is called")  # fmt: skip

    def decorate(function: Callable[..., Any]) -> _Decorated:
        _validate(function, options, {})
        return _Decorated(function, options)

    return decorate


def _run(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    preserve_rng_state: bool,
    context_fn: Callable[[], Contexts],
    determinism_check: str,
    debug: bool,
    early_stop: bool,
    respect_saved_tensors_hooks: bool | None,
) -> Any:
    forward_context, recompute_context = make_contexts(context_fn)
    if forward_context is not NO_CONTEXT or respect_saved_tensors_hooks is not None:
        set_respect_hooks(forward_context, respect_saved_tensors_hooks)
    if not torch.is_grad_enabled():
        return run_without_graph(function, args, kwargs, forward_context)
    region = Region(function, args, kwargs, recompute_context)
    region.check = determinism_check == "default"
    override, logged = _overrides.get()
    region.early_stop = early_stop if override is None else override
    debug = debug if logged is None else logged
    region.operator_log = OperatorLog() if debug else None
    started = accelerators.initialized_module() if preserve_rng_state else None
    if preserve_rng_state:
        if accelerators.is_capturing():
            region.refuse("a graph of the device's work is being captured, in which random numbers cannot be preserved. "
                          "Pass preserve_rng_state=False, or capture without the region")  # fmt: skip
        region.states = random_numbers.capture_states(tuple(region.inputs.generators))
    output = None
    push_hooks_of(region, forward_context is not NO_CONTEXT)
    try:
        if forward_context is NO_CONTEXT and not debug:
            output = function(*args, **kwargs)
            region.complete = True
        else:
            with region.operator_log or NO_CONTEXT, forward_context:
                output = function(*args, **kwargs)
                region.complete = True
    finally:
        pop_hooks()
        region.end_forward(output)  # also where the function raised
    if not region.complete:
        region.refuse("the forward context of context_fn swallowed an exception, so there is no value to return")
    if preserve_rng_state and started is None and accelerators.initialized_module() is not None:
        region.refuse("a device was first initialised inside the region, so its random numbers cannot be replayed. "
                      "Initialise it before, or pass preserve_rng_state=False")  # fmt: skip
    left = modes.process_wide()
    region.modes_after = left if left != region.modes.process_wide else None
    return output


def run_without_graph(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], forward_context: AbstractContextManager[Any]
) -> Any:
    """Call the function where grad mode is off, so that there will be no backward."""
    with forward_context:
        return function(*args, **kwargs)
    raise CheckpointError(f"the forward context {forward_context!r} of context_fn swallowed an exception")


def _trace(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], preserve_rng_state: bool, context_fn: Any, *options: Any
) -> Any:
    """As :func:`_run` does, in the graph of ``torch.compile``."""
    if _overriding:
        raise NotImplementedError(
            f"{_overriding[-1]} is active, which a graph of torch.compile does not heed; compile outside of it"
        )
    return trace(function, args, kwargs, preserve_rng_state, None if context_fn is noop_context_fn else context_fn, *options)


def make_contexts(context_fn: Callable[[], Contexts]) -> Contexts:
    """What ``context_fn`` returns. Raises TypeError if that is not two context managers."""
    contexts = context_fn()
    if context_fn is not noop_context_fn and not (
        isinstance(contexts, tuple | list) and len(contexts) == 2 and all(hasattr(type(one), "__exit__") for one in contexts)
    ):
        raise TypeError(f"context_fn returned {contexts!r}; it must return two context managers")
    forward_context, recompute_context = contexts
    return forward_context, recompute_context


def _validate(function: Any, options: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    preserve_rng_state, context_fn, determinism_check, debug, early_stop, _ = options
    if not type(preserve_rng_state) is type(debug) is type(early_stop) is bool:  # spelled out, for calls without a graph
        _refuse_no_flags(preserve_rng_state=preserve_rng_state, debug=debug, early_stop=early_stop)
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    if not callable(context_fn):
        raise TypeError(f"context_fn is {context_fn!r}; it must be callable and return two context managers")
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check is {determinism_check!r}; it must be 'default' or 'none'")
    if kwargs:
        _refuse_reentrant(kwargs.pop("use_reentrant", None))


def _refuse_no_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}; it must be True or False")


def _refuse_reentrant(use_reentrant: Any) -> None:
    if not isinstance(use_reentrant, int | None):  # such as a second input of checkpoint_sequential, which takes one
        raise TypeError(f"use_reentrant is of type {type(use_reentrant).__name__}; it must be False or None")
    if use_reentrant:
        raise ValueError("use_reentrant is True; this checkpoint is not reentrant (see impls.reentrant)")


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, *, preserve_rng_state: bool = True
) -> Any:
    """Run ``functions`` one after the other in ``segments`` parts, all but the last checkpointed.

    ``use_reentrant`` stands where PyTorch's has it. Raises ValueError if it is true, and what ``sequential`` raises.
    """
    _refuse_reentrant(use_reentrant)
    return sequential(checkpoint, functions, segments, input, preserve_rng_state=preserve_rng_state)


IMPLEMENTATION = Implementation(
    name="nested",
    checkpoint=checkpoint,
    summary="non-reentrant, nests, stops early, checks versions",
    source="PyTorch pull requests 90105 and 96866",
    capabilities=frozenset(CAPABILITIES),
    known=RUN_TWICE
    | UNPACKED
    | LEFT_EARLY
    | SPECIALISED
    | KEPT
    | CACHED
    | CAPTURED
    | WITHIN_BUDGET
    | COMPUTED_ANEW
    | COUNTED
    | KEPT_INSIDE
    | MADE_ANEW
    | ({} if POLICIES_ASK_FOR_HOOKS else BYPASSED),
)
