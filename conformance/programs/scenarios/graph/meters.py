"""Meters for what hooks move between devices, and what is left behind there."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch

from conformance.judging.judge import Case
from conformance.judging.verdicts import Diverges, Measured
from conformance.meters.counters import copied
from conformance.meters.meter import Meter, Storages
from conformance.programs.notes import WHOLE_FORWARD, Role, read
from conformance.simulated_device.device import Moves

PATIENCE = 0.5  # seconds; longer than any thread needs to drop a reference, however busy the machine


class Due(Meter):
    """What hooks around the whole program are given up to the note "forward": the tensors that autograd saves.

    ``tensors`` has one entry for each tensor of its own that is not on the CPU, with the bytes that it takes: two saves
    of one result are one entry, and so are two of equal views. Each save of a leaf is one, which may have been changed since
    the last one where no version tells. ``unpacked`` counts those that a backward reads.
    """

    def __init__(self) -> None:
        self.tensors: dict[tuple[Any, ...], int] = {}
        self.unpacked = 0
        self.kept: list[torch.Tensor] = []
        self.now = True
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
        counted = self.now and tensor.device.type != "cpu" and tensor.numel() > 0
        if counted:
            self.kept.append(tensor.detach())  # an address that stays taken names one storage
            storage = tensor.untyped_storage()._cdata
            is_leaf = (tensor._base if tensor._is_view() else tensor).is_leaf
            key = (storage, tensor._version, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype)
            number = len(self.kept) if is_leaf else 0
            self.tensors[(*key, tensor.is_conj(), tensor.is_neg(), number)] = tensor.numel() * tensor.element_size()
        return tensor.detach(), counted

    def unpack(self, packed: tuple[torch.Tensor, bool]) -> torch.Tensor:
        self.unpacked += packed[1]
        return packed[0]

    def at(self, label: str, value: Any) -> None:
        if read(label) == WHOLE_FORWARD:
            self.now = False

    def __enter__(self) -> Due:
        self.hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hooks.__exit__(None, None, None)


class Moved(Meter):
    """How many copies went to the CPU and how many came from there, and how many bytes went to it."""

    def __init__(self) -> None:
        self.moves = Moves()

    def count(self, to: str) -> int:
        """The copies, of one byte at least, whose destination is "cpu" or "second"."""
        return sum(move.bytes > 0 and (move.kind.endswith("cpu")) is (to == "cpu") for move in self.moves.seen)

    def bytes(self) -> int:
        """The bytes of the copies whose destination is the CPU."""
        return sum(move.bytes for move in self.moves.seen if move.kind.endswith("cpu"))

    def __enter__(self) -> Moved:
        self.moves.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.moves.__exit__(None, None, None)


class Settled(Storages):
    """The storages alive at notes, once those that are on their way have gone.

    A device's backward runs on a thread of autograd's, which lets go of its part a moment after backward has returned.
    ``judged`` are the roles of the notes where nothing is to be alive.
    """

    def __init__(self, *judged: Role) -> None:
        super().__init__()
        self.judged = judged

    def at(self, label: str, value: Any) -> None:
        super().at(label, value)
        until = time.monotonic() + PATIENCE
        while read(label).role in self.judged and self.moments[-1].kept and time.monotonic() < until:
            time.sleep(0.001)
            self.moments.pop()
            super().at(label, value)


class Residents(Settled):
    """The storages that operators made and that are not on the CPU."""

    def see(self, func: Any, result: Any) -> None:
        leaves = torch.utils._pytree.tree_leaves(result)
        super().see(func, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"])


class Waits(Meter):
    """The copies between devices that the host waits for."""

    def __init__(self) -> None:
        self.blocking: Counter[str] = Counter()
        self.free = 0
        self.mode = _Flags(self)

    def __enter__(self) -> Waits:
        self.mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)


class _Flags(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for source in copied(func, args, result):
            if source.numel():
                asynchronous = (kwargs or {}).get("non_blocking", len(args) > 2 and args[2])
                self.waits.free += bool(asynchronous)
                if not asynchronous:
                    self.waits.blocking[f"{source.device.type}→{result.device.type}"] += 1
        return result


def wrongly_moved(told: str, what: str, due: int) -> Diverges:
    """The verdict on a number of copies or bytes between devices that is not the expected one."""
    return Diverges(told, Measured("moved", ((what, due),), at_most=what != "copies to the CPU"))


def copied_to_the_cpu(case: Case, due: int) -> None:
    """Runs the case, and diverges where it copies more tensors to the CPU than are due, or fewer."""
    moved = Moved()
    case.run(moved)
    if moved.count("cpu") != due:
        raise wrongly_moved(f"copies to the CPU: expected {due}, seen {moved.count('cpu')}", "copies to the CPU", due)
