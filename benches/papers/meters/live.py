"""What a run costs, as operators show it: kernels that ran, bytes of the storages they made and that are alive, the peak.

Tensors that were there before, such as inputs and parameters, do not count, and neither do workspaces that a kernel takes
and gives back. Works on the meta device as well, where storages have a size and a lifetime but no bytes behind them.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts kernels by name and follows the storages that operators make, on the thread that enters it.

    ``kernels`` are the operators so far, ``alive`` the bytes that are alive now, ``peak`` the most after any operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.alive = self.peak = 0
        self._known: dict[int, int] = {}

    def __enter__(self) -> Live:
        super().__enter__()
        torch.empty(0)  # torch's first dispatch imports modules in a cycle that keeps every frame of the stack
        self.kernels.clear()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _storages((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self.kernels[func.overloadpacket.__name__] += 1
        for address, storage in _storages(result).items():
            if address not in given and address not in self._known:
                self._known[address] = storage.nbytes()
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._gone, address).atexit = False
        self.peak = max(self.peak, self.alive)
        return result

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each storage that is alive and not empty, in the order in which they were made."""
        return tuple(size for size in self._known.values() if size)

    def _gone(self, address: int) -> None:
        self.alive -= self._known.pop(address)


def _storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    found = (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return {storage._cdata: storage for storage in found}
