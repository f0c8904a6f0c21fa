"""Reentrant checkpointing: legacy, with random numbers, autocast, several device types and arguments of any kind."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from impls.compiled import is_compiling, trace, traced_or_eager, untraced
from impls.implementation import Implementation, known
from impls.known_failures import (
    CAPTURED,
    PEAKS_WITH_OUTPUTS,
    RUNS_TO_THE_END,
    SINGLE_NODE,
    STATISTICS_REQUIRE_GRAD,
    WITHIN_BUDGET,
    without,
)
from impls.leaf_arguments import detach_variable, restore_arguments, save_arguments
from impls.sequential import sequential
from impls.single_node import (
    outputs_of,
    prepare_outputs,
    recomputation_context,
    refuse_impossible_backward,
    requires_grad,
    run_backward,
    run_forward,
)
from impls.state.autocast import Autocast
from impls.state.devices import (
    DefaultDeviceType,
    devices_of,
    get_device_states,
    infer_device_type,
    leaves,
    set_device_states,
)
from impls.state.modes import with_function_state
from impls.state.process_lock import run_undisturbed
from impls.state.random_numbers import Device, States, states_of
from impls.state.restoration import Restoration
from impls.torch_private import function_state

__all__ = [
    "CheckpointFunction",
    "DefaultDeviceType",
    "check_backward_validity",
    "checkpoint",
    "checkpoint_sequential",
    "detach_variable",
    "get_device_states",
    "set_device_states",
]


def check_backward_validity(inputs: Iterable[Any]) -> None:
    """Warn when no tensor among the inputs requires grad: the region then gives no gradient, not even to parameters."""
    if not any(map(requires_grad, inputs)):
        warnings.warn(
            "no argument of the checkpointed function requires grad, so nothing that it uses gets a gradient; let one "
            "require grad, or use the nested checkpoint",
            stacklevel=3,
        )


class CheckpointFunction(torch.autograd.Function):
    """One checkpointed call, as a single node of the graph: ``apply(function, preserve_rng_state, *args)``."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        kind = infer_device_type(*args)
        generators = [leaf for leaf in leaves(args) if isinstance(leaf, torch.Generator)]
        ctx.function, ctx.autocast = function, Autocast.current(kind)
        devices = [Device(kind, index) for index in devices_of(kind, *args)]
        states: States = states_of((torch.default_generator, *generators, *devices)) if preserve_rng_state else []
        ctx.states, ctx.function_state = states, function_state()
        value = run_forward(ctx, function, args)
        if any(ctx.needs_input_grad):
            _refuse_hidden_outputs(value)
        save_arguments(ctx, args)
        return prepare_outputs(ctx, value, args)

    @staticmethod
    @untraced
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        refuse_impossible_backward(ctx)
        inputs = restore_arguments(ctx)
        if all(gradient is None for gradient in gradients):
            return (None,) * len(ctx.needs_input_grad)
        value, inputs = run_undisturbed(functools.partial(_recompute, ctx, [inputs]))
        return (None, None, *run_backward(ctx, value, gradients, inputs))


def _recompute(ctx: Any, ready: list[tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
    """The function's value, and the inputs that it was given: those that are ready, or else others."""
    inputs = ready.pop() if ready else restore_arguments(ctx)
    with recomputation_context(), Restoration(None, ctx.states), with_function_state(ctx.function_state), ctx.autocast.apply():
        return ctx.function(*inputs), inputs


def _opened(argument: Any) -> Any:
    """What a dict or a list holds, as a list: a subclass of these is a leaf to pytree."""
    if isinstance(argument, dict):
        return [*argument.values()]
    return [*argument] if isinstance(argument, list) else argument


def _refuse_hidden_inputs(args: tuple[Any, ...]) -> None:
    for index, argument in enumerate(args):
        if not isinstance(argument, torch.Tensor) and any(map(requires_grad, leaves(_opened(argument)))):
            raise TypeError(
                f"argument {index} of the function is of type {type(argument).__name__} and holds a tensor that "
                "requires grad, which would get no gradient; pass that tensor as an argument of its own"
            )


def _refuse_hidden_outputs(value: Any) -> None:
    if isinstance(value, tuple) and type(value) is not tuple:
        raise TypeError(f"the function returned a {type(value).__name__}, which would come back as a tuple; return a tuple")
    for index, output in enumerate(outputs_of(value)):
        inside = () if isinstance(output, torch.Tensor) else leaves(output)
        if any(isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()) for leaf in inside):
            raise TypeError(
                f"output {index} of the function is of type {type(output).__name__} and holds a tensor, which would "
                "carry no gradient; return a tensor or a tuple of tensors"
            )


@traced_or_eager
def checkpoint(function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True, **options: Any) -> Any:
    """Call ``function(*args)`` and return its value; nothing of its inside is kept for backward, which runs it again.

    ``preserve_rng_state`` makes the second run draw forward's random numbers, on the CPU, on devices that arguments are
    on and from torch.Generator arguments, and leaves the ambient streams where they were.

    Raises TypeError for a flag of another type, for other options, which no function receives, and for tensors that take
    part in autograd inside a container, as argument or as output; RuntimeError when the function changes an argument in
    place, and in a backward that is not a plain ``backward()``. Warns when no argument requires grad. Not checked: that
    both runs compute the same, and what the function reads besides its arguments. While ``torch.compile`` traces a call,
    which is no node of its own then, see :func:`impls.compiled.trace`. Source: ``use_reentrant=True`` of PyTorch.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    if not isinstance(preserve_rng_state, int):
        raise TypeError(f"preserve_rng_state is {preserve_rng_state!r}; it must be True or False")
    if options:
        raise TypeError(
            f"keyword arguments {sorted(options)} are not passed on: the only option is preserve_rng_state, and arguments of "
            "the function are passed by position"
        )
    if is_compiling():
        return trace(function, args, {}, preserve_rng_state)
    if not torch.is_grad_enabled():
        return function(*args)
    _refuse_hidden_inputs(args)
    check_backward_validity(args)
    return CheckpointFunction.apply(function, preserve_rng_state, *args)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, *, preserve_rng_state: bool = True
) -> Any:
    """Run ``functions`` one after the other in ``segments`` parts, all but the last checkpointed.

    ``use_reentrant`` stands where PyTorch's has it. Raises ValueError if it is False, and what ``sequential`` and
    ``checkpoint`` raise.
    """
    if use_reentrant is not None and not use_reentrant:
        raise ValueError("use_reentrant is False; this checkpoint is reentrant (see impls.nested)")
    return sequential(checkpoint, functions, segments, input, preserve_rng_state=preserve_rng_state)


IMPLEMENTATION = Implementation(
    name="reentrant",
    checkpoint=checkpoint,
    summary="legacy, with random numbers, autocast and non-tensor arguments",
    source="PyTorch, use_reentrant=True",
    capabilities=frozenset(
        {
            *(
                "autocast",
                "compiled",
                "explicit-generators",
                "hidden-saves",
                "nesting",
                "non-tensor-arguments",
                "non-tensor-outputs",
            ),
            *("recomputes", "rng", "rng-option"),
        }
    ),
    known=without(SINGLE_NODE, "operators_of_subclasses_are_forwards")
    | STATISTICS_REQUIRE_GRAD
    | RUNS_TO_THE_END
    | PEAKS_WITH_OUTPUTS
    | CAPTURED
    | WITHIN_BUDGET
    | known(
        "refuses",
        "containers with tensors are refused as arguments",
        "seen here",
        "containers_that_an_inner_region_alone_is_passed",
    )
    | known("diverges", "forward runs without grad mode", "see grad_mode_is_forwards", "backward_in_inference_mode")
    | known(
        "diverges",
        "containers are kept as they are: one that an output is put into holds the node, and the node the container",
        "seen here",
        "lists_that_outputs_are_appended_to",
    )
    | known(
        "diverges",
        "containers are kept as they are: the function runs again on what they hold by then",
        "seen here",
        "containers_that_change_after_the_call",
        "containers_whose_keys_are_tensors",
    ),
)
