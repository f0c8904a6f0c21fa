"""What autograd keeps for backward, in bytes of distinct storages, as saved-tensor hooks see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Saved:
    """Bytes that autograd saved, apart from parameters: of activations, and of layer norms' statistics."""

    activations: int
    statistics: int


def saved_bytes(function: Callable[[], Any], *, parameters: Iterable[torch.Tensor], rows: int) -> tuple[Saved, Any]:
    """Call ``function``; what it saved, and its value.

    Each storage counts once, with all its bytes, and those of ``parameters`` not at all. A tensor of ``rows`` elements
    whose last dimension is 1 is taken for a statistic, the mean or the reciprocal deviation of a row.
    """
    tensors: list[torch.Tensor] = []  # kept alive, so that an address stands for one storage

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = function()
    seen = {parameter.untyped_storage()._cdata for parameter in parameters}
    sizes = {True: 0, False: 0}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            sizes[tensor.numel() == rows and tensor.shape[-1] == 1] += storage.nbytes()
    return Saved(activations=sizes[False], statistics=sizes[True]), value
