"""What a run costs, as operators show it: kernels that ran, bytes of the storages they made and that are alive, the peak.

Tensors that were there before, such as inputs and parameters, do not count, and neither do workspaces that a kernel takes
and gives back. Works on the meta device as well, where storages have a size and a lifetime but no bytes behind them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from impls.schedules.live_bytes import LiveStorages


class Live(LiveStorages):
    """Counts kernels by name and follows the storages that operators make, on the thread that enters it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __enter__(self) -> Live:
        super().__enter__()
        torch.empty(0)  # torch's first dispatch imports modules in a cycle that keeps every frame of the stack
        self.kernels.clear()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.kernels[func.overloadpacket.__name__] += 1
        return result
