"""A region as a single node of the graph, which runs a backward of its own: what legacy and reentrant have in common.

Forward runs without a graph inside a custom autograd Function; its backward runs the function anew on detached inputs
and calls autograd from within autograd. What follows from that: gradients reach what the function reads besides its
arguments by accumulation alone, every floating point output requires grad, and a region of which no argument requires
grad is not differentiated at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from impls.tensors.other_names import OutsideTensors
from impls.torch_private import is_backward_for_all_leaves, pop_hooks, push_hooks, top_hooks

Gradients = tuple[torch.Tensor | None, ...]


class _UnderWay(threading.local):
    """The nodes whose backward is under way on a thread, the innermost at the end."""

    nodes: tuple[Any, ...] = ()


_under_way = _UnderWay()


def outputs_of(value: Any) -> tuple[Any, ...]:
    """What a custom autograd Function makes of a value: each entry of a tuple is an output, anything else is one."""
    return value if isinstance(value, tuple) else (value,)


def requires_grad(value: Any) -> bool:
    """Whether a value is a tensor that requires grad."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def run_forward(ctx: Any, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The function's value. Raises RuntimeError when the function changes one of ``args`` in place."""
    ctx.set_materialize_grads(False)  # an output that gets no gradient gets None, as under plain, instead of zeros
    tensors = [(i, a, a._version) for i, a in enumerate(args) if isinstance(a, torch.Tensor) and not a.is_inference()]
    ctx.outside = OutsideTensors(function) if any(ctx.needs_input_grad) else None
    value = function(*args)
    for index, tensor, version in tensors:
        if any(ctx.needs_input_grad) and tensor._version != version:
            raise RuntimeError(f"the function changed its argument {index} in place, so it cannot run again. Clone it first")
    return value


def prepare_outputs(ctx: Any, value: Any, args: Sequence[Any]) -> Any:
    """The value, made fit to be returned by the forward of a custom autograd Function."""
    outputs = outputs_of(value)
    passed = {id(argument) for argument in args}
    known, ctx.outside = ctx.outside, None
    # Autograd would turn a tensor from outside, a buffer for instance, into an output of the node. One that needs no grad and
    # was not changed is returned as it is.
    ctx.mark_non_differentiable(
        *[
            o
            for o in outputs
            if isinstance(o, torch.Tensor) and not o.requires_grad and (id(o) in passed or (known is not None and known.has(o)))
        ]
    )
    # Nothing that was made without a graph requires grad. An output that does, and is no argument, is from outside, too, a
    # parameter for instance.
    outside = [requires_grad(o) and id(o) not in passed for o in outputs]
    if not any(outside):
        return value
    aliased = tuple(o.detach() if alien else o for o, alien in zip(outputs, outside, strict=True))
    return aliased if isinstance(value, tuple) else aliased[0]


def refuse_impossible_backward(ctx: Any) -> None:
    """Raise RuntimeError in a backward that asks for less than all gradients, or for a graph, or comes from the node itself."""
    if any(one is ctx for one in _under_way.nodes):
        raise RuntimeError(
            "backward of a checkpointed function leads back into itself: the recomputation returned, or read, a tensor that "
            "forward had returned, such as one that is kept in an attribute. Return a clone of it, or use the nested checkpoint"
        )
    if not is_backward_for_all_leaves():
        raise RuntimeError(
            "this checkpoint runs a backward of its own inside backward, and that one reaches every leaf, so it cannot "
            "answer torch.autograd.grad() and backward(inputs=...). Call backward() alone, or use the nested checkpoint"
        )
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this checkpoint runs a backward of its own inside backward, and that one leaves no graph, so it cannot "
            "answer create_graph=True. Call backward() alone, or use the nested checkpoint"
        )


@contextmanager
def recomputation_context() -> Iterator[None]:
    """Grad mode on, inference mode off, and the hooks around backward set aside: they are not about the region."""
    aside = []
    try:
        while (hooks := top_hooks(True)) is not None:
            pop_hooks()
            aside.append(hooks)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for hooks in reversed(aside):
            push_hooks(*hooks)


def run_backward(ctx: Any, value: Any, gradients: Gradients, inputs: tuple[Any, ...]) -> Gradients:
    """Send gradients through a recomputed value; returns those of the inputs, of one that occurs twice at its first place.

    Raises RuntimeError when the recomputation returned another number of values, or none that requires grad.
    """
    outputs = outputs_of(value)
    if len(outputs) != len(gradients):
        raise RuntimeError(
            f"the function returned {len(gradients)} values in forward, but {len(outputs)} in recomputation; "
            "it must do the same in both runs"
        )
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and requires_grad(o)]
    if not pairs:
        raise RuntimeError(
            "backward reached outputs of a checkpointed function of which none requires grad. Leave them out of the "
            "loss, or call the function without checkpointing it"
        )
    before = _under_way.nodes
    _under_way.nodes = (*before, ctx)
    try:
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
    finally:
        _under_way.nodes = before
    leaves = {id(leaf): leaf for leaf in inputs if isinstance(leaf, torch.Tensor)}
    found = [leaves.pop(id(leaf), None) for leaf in inputs]
    return tuple(None if leaf is None else leaf.grad for leaf in found)
