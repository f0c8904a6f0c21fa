"""Wrappers that several faults are made of: a function that does something else, too, or is given other arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Pretend that a tensor has been changed in place so many times."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def forget_change(slot: Any) -> None:
    """Pretend that the tensor which a slot of a region stands for is as it was saved."""
    followed = slot[1] if isinstance(slot[1], torch.Tensor) else slot[1].tensor()
    if followed is not None and followed._version != slot[2][3]:
        set_version(followed, slot[2][3])


def forget_changes(region: Any) -> None:
    """Pretend that all tensors which a region saved are as they were saved."""
    for slot in region.slots:
        forget_change(slot)


def compare_versions_alone_if(copy: Copy, alone: Callable[[Any, int, torch.Tensor], bool]) -> None:
    """Compare nothing but the version of a tensor that does not look as it did in forward, where ``alone`` says so."""

    def compare(there: Any, self: Any, index: int, tensor: torch.Tensor) -> None:
        if alone(self, index, tensor):
            self.same_version(tensor, self.slots[index][2][3])
        else:
            there(self, index, tensor)

    copy.call_instead("nested.recomputation", "Recomputation.compare", compare)


def drop_result(copy: Copy, dropped: Callable[[Any, Any], bool]) -> None:
    """Let regions of nested recompute again for each tensor, where ``dropped`` says so of a region and what it recomputed."""

    def drop(values: Any, self: Any, task: int, slot: Any) -> None:
        if dropped(self, values):
            self.values.pop(task, None)

    copy.call_after("nested.region", "Region.recompute", drop)
