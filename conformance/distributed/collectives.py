"""Meters of a rank: the collectives that it issues, in their order, and the storages that regions leave alive."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from conformance.distributed.answer import Collective
from conformance.meters.meter import Meter, Storages, watching
from conformance.programs.notes import Role

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
# Operators of these namespaces that issue nothing, or that call another one, which is counted instead.
SILENT = frozenset({"wait_tensor", "wrap_tensor_autograd", "monitored_barrier_"})


class Collectives(Meter):
    """The collectives that torch's dispatcher sees, whether c10d or something built on it issues them.

    A collective counts as the recomputation's if autograd and a region's function are running, as backward's if only autograd
    is, else as forward's.
    """

    def __init__(self) -> None:
        self.found: list[Collective] = []
        self.called: set[int] = set()
        self.again = 0
        self.mode = watching(self.see)

    def see(self, func: Any, result: Any) -> None:
        """An operator was called."""
        name = func.overloadpacket.__name__
        if func.namespace in NAMESPACES and name not in SILENT:
            self.found.append(Collective(name.strip("_"), _bytes(result), self.place))

    @property
    def place(self) -> str:
        """The place to which a collective counts now."""
        if torch._C._current_graph_task_id() == -1:
            return "forward"
        return "recomputation" if self.again else "backward"

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a region; while autograd runs, a call of it is a recomputation."""

        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> Any:
            self.again += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.again -= 1

        return entered

    def __enter__(self) -> Collectives:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)


def _bytes(result: Any) -> int:
    """The bytes of the tensors that a collective returns."""
    return sum(one.numel() * one.element_size() for one in tree_leaves(result) if isinstance(one, torch.Tensor))


class RegionStorages(Storages):
    """How many storages that functions of regions made are alive whenever the program notes all that it holds."""

    @property
    def counts(self) -> dict[str, int]:
        """By the labels of these notes."""
        where = (Role.HELD, Role.EMPTY)
        return {one.label: sum(bool(made.region) for made in one.kept) for one in self.moments if one.note.role in where}
