"""Checkpointing as of PyTorch 0.4: save the inputs, run the function again in backward, differentiate that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from impls.compiled import is_compiling, traced_or_eager, untraced
from impls.implementation import Implementation, known
from impls.known_failures import (
    AUTOCAST_LOST,
    DRAWS_ANEW,
    PEAKS_WITH_OUTPUTS,
    RUNS_TO_THE_END,
    SINGLE_NODE,
    TWO_DTYPES,
)
from impls.leaf_arguments import restore_arguments, save_arguments
from impls.sequential import sequential
from impls.single_node import (
    Gradients,
    outputs_of,
    prepare_outputs,
    recomputation_context,
    refuse_impossible_backward,
    run_backward,
    run_forward,
)


class _Region(torch.autograd.Function):
    """One checkpointed call, as a single node of the graph."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: torch.Tensor) -> Any:
        ctx.function = function
        value = run_forward(ctx, function, args)
        if isinstance(value, tuple) and type(value) is not tuple:
            raise TypeError(f"the function returned a {type(value).__name__}; legacy takes a tensor or a plain tuple")
        for index, output in enumerate(outputs_of(value)):
            if not isinstance(output, torch.Tensor):
                kind = type(output).__name__
                raise TypeError(f"output {index} of the function is of type {kind}; legacy takes tensors alone")
        save_arguments(ctx, args)
        return prepare_outputs(ctx, value, args)

    @staticmethod
    @untraced
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        refuse_impossible_backward(ctx)
        inputs = restore_arguments(ctx)
        if all(gradient is None for gradient in gradients):
            return (None,) * len(ctx.needs_input_grad)
        with recomputation_context():
            value = ctx.function(*inputs)
        result: Gradients = (None, *run_backward(ctx, value, gradients, inputs))
        return result


@traced_or_eager
def checkpoint(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Any:
    """Call ``function(*args)`` and return its value; nothing of its inside is kept for backward, which runs it again.

    Arguments and values are tensors; the value may be a tuple of them. Raises TypeError for anything else, and for
    options, before the function runs where that can be known; RuntimeError when the function changes an argument in
    place, and in a backward that is not a plain ``backward()``. Not kept for the second run: random numbers, autocast.
    Not checked: that both runs compute the same, and what the function reads besides its arguments.
    Source: PyTorch pull request 6467.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    if options:
        raise TypeError(f"keyword arguments {sorted(options)}: legacy takes tensors by position, and has no options")
    for index, argument in enumerate(args):
        if not isinstance(argument, torch.Tensor):
            kind = type(argument).__name__
            raise TypeError(f"argument {index} of the function is of type {kind}; legacy takes tensors alone")
    if is_compiling():
        raise NotImplementedError("legacy runs a backward of its own, which torch.compile does not trace; call it eagerly, "
                                  "or use impls.reentrant or impls.nested")  # fmt: skip
    if not torch.is_grad_enabled():
        return function(*args)
    return _Region.apply(function, *args)


def checkpoint_sequential(functions: Any, segments: int, *inputs: torch.Tensor) -> Any:
    """Run ``functions`` one after the other in ``segments`` parts, all but the last checkpointed.

    A function that returns a tuple gives the next one several arguments. Raises what ``sequential`` raises.
    """
    return sequential(checkpoint, functions, segments, *inputs, spread=True)


IMPLEMENTATION = Implementation(
    name="legacy",
    checkpoint=checkpoint,
    summary="saves inputs, reruns in backward; no random numbers, no autocast",
    source="PyTorch 0.4, pull request 6467",
    capabilities=frozenset({"hidden-saves", "nesting", "recomputes"}),
    known=SINGLE_NODE
    | RUNS_TO_THE_END
    | known("diverges", "forward runs without grad mode", "see grad_mode_is_forwards", "backward_in_inference_mode")
    | DRAWS_ANEW
    | AUTOCAST_LOST
    | TWO_DTYPES
    | PEAKS_WITH_OUTPUTS
    | known(
        "diverges",
        "random numbers are not restored: the recomputation draws others and moves the device's generator",
        "see dropout_masks_are_replayed; seen on the simulated device",
        "offsets_of_generators_are_plains",
        "side_streams_under_delays",
        "a_region_does_not_make_the_host_wait",
    )
    | known("diverges", "autocast is not restored", "see autocast_is_forwards", "autocast_of_device_and_host"),
)
