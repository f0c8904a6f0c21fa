"""A meter of what saved-tensor hooks around a whole program see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.meters.meter import Meter
from conformance.programs.notes import WHOLE_FORWARD, Role, read


class Packs(Meter):
    """What hooks around the whole program see: the storages that are packed up to the note "forward", and after it.

    A program's note "saved" holds the tensors that are due to be packed in forward. A storage is known by a number;
    those that were packed stay alive, so that it stands for one storage.
    """

    def __init__(self) -> None:
        self.due: Counter[int] = Counter()
        self.forward: Counter[int] = Counter()
        self.backward: Counter[int] = Counter()
        self.now = self.forward
        self.kept: list[torch.Tensor] = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, _same)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().nbytes():  # one without elements keeps nothing
            self.kept.append(tensor)
            self.now[_identity(tensor)] += 1
        return tensor

    def at(self, label: str, value: Any) -> None:
        note = read(label)
        if note.role is Role.SAVED:
            self.due = Counter(_identity(tensor) for tensor in value)
        elif note == WHOLE_FORWARD:
            self.now = self.backward

    def __enter__(self) -> Packs:
        self.hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hooks.__exit__(None, None, None)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _identity(tensor: torch.Tensor) -> int:
    return StorageWeakRef(tensor.untyped_storage()).cdata
