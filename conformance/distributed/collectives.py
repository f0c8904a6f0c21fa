"""Meters of a rank: the collectives that it issues, in their order, and the storages that regions leave alive."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from conformance.distributed.answer import Collective, Region
from conformance.meters.counters import region_name
from conformance.meters.meter import Meter, Moment, Storages, watching
from conformance.programs.notes import Role, read

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
# Operators of these namespaces that issue nothing, or that stand for another one that is counted when it is reached.
SILENT = frozenset({"wait_tensor", "wrap_tensor_autograd", "monitored_barrier"})
WHERE = (Role.HELD, Role.EMPTY)
LOOKS = 20


class Collectives(Meter):
    """The collectives that torch's dispatcher sees, whether c10d or something built on it issues them.

    One is issued in the recomputation if autograd runs and a region's function does, in backward if no such function does, else
    in forward. A region has the name of its function, after those of the regions whose functions run around it. In backward it
    is the one whose function made the node that autograd runs, if its output depends on that node.
    """

    def __init__(self) -> None:
        self.found: list[Collective] = []
        self.regions: list[str] = []  # which run now, the innermost one last
        self.mode = watching(self.see)

    def see(self, func: Any, result: Any) -> None:
        """An operator was called."""
        name = func.overloadpacket.__name__.strip("_")
        if func.namespace in NAMESPACES and name not in SILENT:
            self.found.append(Collective(name, _bytes(result), self.place, self.region))

    @property
    def place(self) -> str:
        """The place to which a collective counts now."""
        if torch._C._current_graph_task_id() == -1:
            return "forward"
        return "recomputation" if self.regions else "backward"

    @property
    def region(self) -> Region:
        """The region to which a collective counts now."""
        node: Any = torch._C._current_autograd_node()
        return tuple(self.regions) if self.regions or node is None else node.metadata.get(self, ())

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a region; while autograd runs, a call of it is a recomputation."""

        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            self.regions.append(region_name(function))
            first = torch._C._autograd._get_sequence_nr()
            try:
                result = function(*args, **kwargs)
                self._mark_nodes(result, first)
                return result
            finally:
                self.regions.pop()

        return entered

    def _mark_nodes(self, result: Any, first: int) -> None:
        """Note the present region at the nodes that its function made, which have this sequence number or a later one."""
        nodes: list[Any] = [one.grad_fn for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        while nodes:
            node = nodes.pop()
            is_new = node is not None and node._sequence_nr() >= first and self not in node.metadata
            if is_new and not hasattr(node, "variable"):  # a leaf's node has the highest number, and belongs to nobody
                node.metadata[self] = tuple(self.regions)
                nodes += [one for one, _ in node.next_functions]

    def __enter__(self) -> Collectives:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)


def _bytes(result: Any) -> int:
    """The bytes of the tensors that a collective returns."""
    return sum(one.numel() * one.element_size() for one in tree_leaves(result) if isinstance(one, torch.Tensor))


class RegionStorages(Storages):
    """How many storages that functions of regions made are alive, where the program notes all that it holds.

    A thread of the process group holds what it sent for some moments after the others have received it. So what seems to be
    kept is looked at again, so many ``times`` within a second, until a note at which something stays: that is the verdict. With
    ``keeps``, regions keep what they made until backward by definition, and it is looked at once before that.
    """

    def __init__(self, times: int = LOOKS, *, keeps: bool = False) -> None:
        super().__init__()
        self.times, self.keeps = times, keeps

    @property
    def counts(self) -> dict[str, int]:
        """By the labels of these notes."""
        return {one.label: _of_regions(one) for one in self.moments if one.note.role in WHERE}

    def looks(self, label: str) -> int:
        """How many times to look again at what seems to be kept at a note."""
        role = read(label).role
        is_told = role not in WHERE or (self.keeps and role is Role.HELD) or any(self.counts.values())
        return 0 if is_told else self.times

    def at(self, label: str, value: Any) -> None:
        looks = self.looks(label)
        super().at(label, value)
        for _ in range(looks):
            if not _of_regions(self.moments[-1]):
                return
            time.sleep(1 / self.times)
            self.moments.pop()
            super().at(label, value)


def _of_regions(moment: Moment) -> int:
    return sum(bool(made.region) for made in moment.kept)
