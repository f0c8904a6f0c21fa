"""The public functions of native checkpointing, and the record by which it presents itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from impls.compiled import is_compiling, traced_or_eager
from impls.implementation import CAPABILITIES, Implementation
from impls.native.region import capture_states, refuse, require_extension
from impls.nested import api as nested
from impls.nested.api import CheckpointError as CheckpointError
from impls.nested.api import Contexts
from impls.nested.api import noop_context_fn as noop_context_fn
from impls.nested.api import set_checkpoint_debug_enabled as set_checkpoint_debug_enabled
from impls.nested.api import set_checkpoint_early_stop as set_checkpoint_early_stop
from impls.nested.operator_log import OperatorLog
from impls.nested.recomputation import NO_CONTEXT
from impls.nested.user_hooks import set_respect_hooks
from impls.sequential import sequential
from impls.state import accelerators, modes, streams


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
    """As :func:`impls.nested.checkpoint`, in arguments, value and errors.

    Raises NativeUnavailableError, too, where the extension cannot be built.
    """
    options = preserve_rng_state, context_fn, determinism_check, debug, early_stop, respect_saved_tensors_hooks
    if function is None and not args:
        return _decorator(options, kwargs)
    nested._validate(function, options, kwargs)
    run = nested._trace if is_compiling() else _run
    return run(function, args, kwargs, *options)


class _Decorated(nested._Decorated):
    """A function that is called through this checkpoint each time."""

    @traced_or_eager
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        run = nested._trace if is_compiling() else _run
        return run(self._function, args, kwargs, *self._options)

    @traced_or_eager
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = super().__get__(instance, owner)
        return bound if bound is self else _Decorated(bound._function, self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Decorated) and super().__eq__(other)

    __hash__ = nested._Decorated.__hash__


def _decorator(options: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Callable[..., Any]], nested._Decorated]:
    of_nested = nested._decorator(options, kwargs)  # which refuses what is to be refused
    return lambda function: _Decorated(of_nested(function)._function, options)


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
    if not torch.is_grad_enabled() and context_fn is noop_context_fn and respect_saved_tensors_hooks is None:
        return function(*args, **kwargs)
    extension = require_extension()
    forward_context, recompute_context = nested.make_contexts(context_fn)
    if forward_context is not NO_CONTEXT or respect_saved_tensors_hooks is not None:
        set_respect_hooks(forward_context, respect_saved_tensors_hooks)
    if not torch.is_grad_enabled():
        return nested.run_without_graph(function, args, kwargs, forward_context)
    override, logged = nested._overrides.get()
    region = extension.begin_region(function, args, kwargs, recompute_context, determinism_check == "default",
                                    early_stop if override is None else override, preserve_rng_state)  # fmt: skip
    if debug if logged is None else logged:
        region.operator_log = OperatorLog()
    started = None
    if extension.has_accelerator:
        region.stream = streams.current_stream()
        started = accelerators.initialized_module() if preserve_rng_state else None
    if preserve_rng_state:
        if extension.has_accelerator and accelerators.is_capturing():
            refuse(region, "a graph of the device's work is being captured, in which random numbers cannot be preserved. "
                           "Pass preserve_rng_state=False, or capture without the region")  # fmt: skip
        if extension.has_accelerator or region.inputs is not None:
            capture_states(region)
    if forward_context is NO_CONTEXT and region.operator_log is None:
        output = region.forward(args, kwargs)
    else:
        output = _run_in_context(region, args, kwargs, forward_context)
    if preserve_rng_state and started is None and extension.has_accelerator and accelerators.initialized_module() is not None:
        refuse(region, "a device was first initialised inside the region, so its random numbers cannot be replayed. "
                       "Initialise it before, or pass preserve_rng_state=False")  # fmt: skip
    return output


def _run_in_context(region: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
    output, complete = None, False
    region.start()
    try:
        with region.operator_log or NO_CONTEXT, context:
            output = region.function(*args, **kwargs)
            complete = True
    finally:
        region.finish(output, complete)  # also where the function raised
    if not complete:
        refuse(region, "the forward context of context_fn swallowed an exception, so there is no value to return")
    left = modes.process_wide()
    region.modes_after = left if left != region.modes.process_wide else None
    return output


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, *, preserve_rng_state: bool = True
) -> Any:
    """As :func:`impls.nested.checkpoint_sequential`, through this checkpoint."""
    nested._refuse_reentrant(use_reentrant)
    return sequential(checkpoint, functions, segments, input, preserve_rng_state=preserve_rng_state)


IMPLEMENTATION = Implementation(
    name="native",
    checkpoint=checkpoint,
    summary="nested, with hooks in C++",
    source="impls.nested",
    capabilities=frozenset(CAPABILITIES),
    known=nested.IMPLEMENTATION.known,
)
