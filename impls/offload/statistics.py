"""Which running statistics an operator has updated without telling their version counters.

The kernels of batch norm write running_mean and running_var although their schemas do not say so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_RUNNING = ("running_mean", "running_var")


class Statistics(TorchDispatchMode):
    """Collects, by the number of their storages, tensors that operators inside take as running statistics and update."""

    def __init__(self) -> None:
        super().__init__()
        self.updated: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        if _RUNNING[0] in names and "backward" not in func._schema.name:
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            if given.get("training", True):
                tensors = (given.get(name) for name in _RUNNING)
                self.updated.update(t.untyped_storage()._cdata for t in tensors if isinstance(t, torch.Tensor))
        return func(*args, **(kwargs or {}))
