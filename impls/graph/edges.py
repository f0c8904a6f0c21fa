"""The places of the graph where gradients arrive, and version counters.

``Node`` and ``GradientEdge`` are torch's own: the engine takes nothing else for a place, and ``isinstance`` is to say yes
to the nodes it makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

__all__ = ["GradientEdge", "Node", "get_gradient_edge", "increment_version", "node_of"]

_increment_versions = torch.autograd.graph.increment_version


def node_of(tensor: torch.Tensor) -> Node:
    """The node that a tensor's gradient goes to, for a leaf the one that accumulates it; the tensor must require grad."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    return _node_above(tensor).next_functions[0][0]


def _node_above(tensor: torch.Tensor) -> Any:
    """A new node that owns what is below it, which a Python-written node's own object does not."""
    with torch.inference_mode(False), torch.enable_grad():
        return tensor.view_as(tensor).grad_fn


def get_gradient_edge(tensor: torch.Tensor) -> GradientEdge:
    """The edge where the tensor's gradient arrives, for ``torch.autograd.grad`` and ``backward`` to take in its place.

    The edge keeps the graph below it alive, also below a custom Function, but not the tensor. Raises TypeError for
    what is no tensor, RuntimeError for a tensor that does not require grad.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is a {type(tensor).__name__}; it must be a torch.Tensor")
    if not tensor.requires_grad:
        raise RuntimeError("tensor does not require grad, so no gradient arrives anywhere and there is no edge to give")
    node = node_of(tensor)
    return GradientEdge(node, tensor.output_nr, _node_above(tensor) if isinstance(node, BackwardCFunction) else None)


def increment_version(tensor: torch.Tensor | Iterable[torch.Tensor]) -> None:
    """Tell autograd that a tensor, or each of several, was changed in place by something it does not see.

    Inference tensors, which have no version, are passed over, as by torch. Raises TypeError, with no version changed,
    unless ``tensor`` is a tensor or an iterable of tensors.
    """
    if isinstance(tensor, torch.Tensor):
        tensor = (tensor,)
    if not isinstance(tensor, Iterable):
        raise TypeError(f"tensor is a {type(tensor).__name__}; it must be a torch.Tensor or an iterable of them")
    tensors = tuple(tensor)
    for index, each in enumerate(tensors):
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"tensor[{index}] is a {type(each).__name__}; it must be a torch.Tensor")
    _increment_versions(tensors)
