"""A log of the nodes that a backward executes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from impls.graph.edges import GradientEdge, Node, node_of
from impls.torch_private import current_autograd_node, current_graph_task_id

log = logging.getLogger("impls.graph")


class _FirstBackward:
    """The hook of every node. It speaks for the backward that was the first to reach one of them."""

    def __init__(self) -> None:
        self.task: int | None = None
        self.lock = threading.Lock()

    def __call__(self, grad_outputs: Sequence[torch.Tensor | None]) -> None:
        task = current_graph_task_id()
        with self.lock:
            if self.task is None:
                self.task = task
        if task == self.task:
            node: Any = current_autograd_node()
            log.debug("executing %s, grad_outputs: %s", node.name(), ", ".join(map(_described, grad_outputs)))


def _described(grad: torch.Tensor | None) -> str:
    return "None" if grad is None else f"{str(grad.dtype).removeprefix('torch.')}{list(grad.shape)}"


def _nodes(outputs: Sequence[torch.Tensor | GradientEdge]) -> Iterator[Node]:
    """Each node that the outputs lead to, once."""
    seen = {output.node if isinstance(output, GradientEdge) else node_of(output) for output in outputs}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        yield node
        new = {below for below, _ in node.next_functions if below is not None} - seen
        seen |= new
        waiting.extend(new)


@contextmanager
def logged_backward(*outputs: torch.Tensor | GradientEdge) -> Iterator[None]:
    """While the context is open, log each node that the first backward from the outputs executes, before it runs.

    The logger is ``impls.graph``, the level DEBUG; a line has the node's name and dtype and shape of the gradients it is
    given. Nothing is attached to the graph unless that level is on at entry, and nothing stays attached. A second
    backward inside, or one that runs within the first, is not logged, nor are nodes that are made after entry. Raises
    TypeError for an output that is neither tensor nor GradientEdge, ValueError for one that does not require grad.
    """
    for index, output in enumerate(outputs):
        if not isinstance(output, torch.Tensor | GradientEdge):
            raise TypeError(f"outputs[{index}] is a {type(output).__name__}; it must be a torch.Tensor or a GradientEdge")
        if isinstance(output, torch.Tensor) and not output.requires_grad:
            raise ValueError(f"outputs[{index}] does not require grad, so no backward starts there")
    hook, handles = _FirstBackward(), []
    try:
        if log.isEnabledFor(logging.DEBUG):
            for node in _nodes(outputs):
                handles.append(node.register_prehook(hook))  # noqa: PERF401 (what is attached must be known after an error)
        yield
    finally:
        for handle in handles:
            handle.remove()
