"""Follows copies of parameters from operator to operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from conformance.meters.meter import Meter
from conformance.programs.notes import Note, Role, read


@dataclass(frozen=True)
class Presence:
    """The parameters, by index among the leaves, with a copy alive after an operator; and the last note before it."""

    copies: frozenset[int]
    operator: str
    note: Note


class Residents(Meter):
    """The copies of leaves that are alive after each operator: results of operators on a leaf that equal it bit for bit.

    Leaves are those of the program's first note "leaves", and must differ in their values. Not seen: a copy of several leaves
    in one tensor, and copies of copies.
    """

    def __init__(self) -> None:
        self.leaves: tuple[torch.Tensor, ...] = ()
        self.own: set[int] = set()
        self.copies: dict[int, tuple[StorageWeakRef, int]] = {}
        self.moments: list[Presence] = []
        self.note = read("")
        self.mode = _Following(self)

    def at(self, label: str, value: Any) -> None:
        role = read(label).role
        if role is Role.LEAVES and not self.leaves:
            self.leaves = tuple(value)
            self.own = {_address(leaf) for leaf in self.leaves}
        elif role is Role.COST:
            self.note = read(label)
            if self.leaves:
                self.moments.append(Presence(self.alive(), "", self.note))

    def __enter__(self) -> Residents:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)

    def alive(self) -> frozenset[int]:
        """The leaves of which a copy is alive now."""
        self.copies = {key: (weak, index) for key, (weak, index) in self.copies.items() if not weak.expired()}
        return frozenset(index for _, index in self.copies.values())

    def see(self, operator: str, arguments: Any, result: Any) -> None:
        """Note what came out of an operator."""
        if not self.leaves:
            return
        read = [leaf for leaf in _tensors(arguments) if _address(leaf) in self.own]
        if read:
            with _disable_current_modes(), torch.no_grad():
                for made in _tensors((result, arguments)):
                    self.compare(made, read)
        self.moments.append(Presence(self.alive(), operator, self.note))

    def compare(self, made: torch.Tensor, read: Sequence[torch.Tensor]) -> None:
        """Remember a tensor that has memory of its own and the values of a leaf that was read."""
        address = _address(made)
        if address in self.own:
            return
        for leaf in read:
            if made.shape == leaf.shape and made.dtype == leaf.dtype and torch.equal(made, leaf):
                index = next(i for i, own in enumerate(self.leaves) if _address(own) == _address(leaf))
                self.copies[address] = StorageWeakRef(made.untyped_storage()), index


class _Following(TorchDispatchMode):
    def __init__(self, residents: Residents) -> None:
        super().__init__()
        self.residents = residents

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.residents.see(func.__name__, (args, kwargs), result)
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


def _address(tensor: torch.Tensor) -> int:
    return StorageWeakRef(tensor.untyped_storage()).cdata
