"""The size of a program, counted by running it, in the same way for drawn and for hand-written programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from conformance.judging.judge import execute
from conformance.judging.references import REFERENCES
from conformance.programs.program import Runnable
from impls import Kind

_ASKING = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


def operations(program: Runnable, device: str, kind: Kind = "checkpoint") -> int:
    """The number of operations in the largest graph that a program makes when it runs under plain.

    An operation is a call of a function of torch, by the program or a module that it calls, whose result autograd records; so
    is the application of an ``autograd.Function``. ``Linear`` is one operation, whatever it consists of. Graphs that share only
    leaves are different graphs, so a program that runs forward twice, or once more for what it expects, is no larger. Not
    counted: what backward computes, gradients of gradients, and what other threads do.
    """
    with _Graphs() as graphs:
        execute(getattr(program, "eager", program), REFERENCES[kind], device, kind=kind)
    return graphs.largest


class _Graphs(TorchFunctionMode):
    """Follows the graphs that a run makes. It keeps them alive, so nothing else can be measured in that run."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: dict[Node, Node] = {}  # a node of the same graph, or itself
        self.sizes: Counter[Node] = Counter()

    @property
    def largest(self) -> int:
        return max(self.sizes.values(), default=0)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function not in _ASKING and torch._C._current_graph_task_id() == -1:
            nodes = {t.grad_fn for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.grad_fn is not None}
            new = nodes - self.graphs.keys()
            for node in nodes:
                self.follow(node)
            if new:
                self.sizes[self.graph(new.pop())] += 1
        return result

    def follow(self, node: Node) -> None:
        """Add a node and those below it. A node and those whose results it reads are in one graph."""
        if node in self.graphs:
            return
        self.graphs[node] = node
        self.sizes[node] += isinstance(node, BackwardCFunction)
        for below in _inner(node):
            self.follow(below)
            self.join(node, below)

    def graph(self, node: Node) -> Node:
        while self.graphs[node] is not node:
            node = self.graphs[node]
        return node

    def join(self, one: Node, other: Node) -> None:
        one, other = self.graph(one), self.graph(other)
        if one is not other:
            self.graphs[other] = one
            self.sizes[one] += self.sizes.pop(other, 0)


def _inner(node: Node) -> Iterator[Node]:
    """The nodes whose results a node reads, without leaves."""
    for below, _ in node.next_functions:
        if below is not None and below.next_functions:
            yield below
