"""How many bytes of tensors are alive while something runs, on any device, fake ones included."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from impls.torch_private import TorchDispatchMode, tree_leaves


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of storages that operators make while this mode is on, until each of them dies.

    ``alive`` is what is alive of them, ``peak`` the most there has been since it was last set, ``made`` how many there were;
    ``sizes`` has the bytes of each that is alive, by its identity, in the order in which they were made.
    Not seen: what a kernel allocates for itself while it runs, what is rounded up by an allocator, and tensors without a
    storage of their own (sparse ones, subclasses that wrap others).
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = self.made = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        there = storages((args, kwargs))
        result = func(*args, **(kwargs or {}))
        for key, storage in storages(result).items():
            if key not in there and key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                self.alive += storage.nbytes()
                self.made += 1
                weakref.finalize(storage, self._forget, key).atexit = False
        self.peak = max(self.peak, self.alive)
        return result

    def _forget(self, key: int) -> None:
        self.alive -= self.sizes.pop(key)


def storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """The storages of the strided tensors in a tree, each once, by an identity that holds while it is alive."""
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided)
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage for storage in found}
