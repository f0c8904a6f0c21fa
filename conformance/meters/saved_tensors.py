"""A meter of what saved-tensor hooks around a whole program see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.meters.counters import storages
from conformance.meters.meter import Meter
from conformance.programs.notes import WHOLE_FORWARD, Role, read


class Packs(Meter):
    """What hooks around the whole program see: the storages that are packed up to the note "forward", and after it.

    A program's note "saved" has the tensors that must be packed in forward.
    """

    def __init__(self) -> None:
        self.due: Counter[StorageWeakRef] = Counter()
        self.forward: Counter[StorageWeakRef] = Counter()
        self.backward: Counter[StorageWeakRef] = Counter()
        self.now = self.forward
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, _same)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.now.update(storages(tensor).keys())
        return tensor

    def at(self, label: str, value: Any) -> None:
        note = read(label)
        if note.role is Role.SAVED:
            self.due = Counter(one for tensor in value for one in storages(tensor))
        elif note == WHOLE_FORWARD:
            self.now = self.backward

    def __enter__(self) -> Packs:
        self.hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hooks.__exit__(None, None, None)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
