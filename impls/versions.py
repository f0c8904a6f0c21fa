"""Following a tensor's version counter without keeping its storage alive.

Autograd refuses a backward when a tensor that it saved was changed in place since. A checkpoint drops the tensor, so it
has to remember the counter some other way: a detached alias shares the counter of the original, and giving the alias
an empty storage of its own keeps the counter while the original's storage can be freed.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import torch

_EMPTY = torch.empty(0)
_ORDINARY = (torch.Tensor, torch.nn.Parameter)


class Counter(Protocol):
    """Whatever tells the current version of the tensor that it was made for."""

    @property
    def _version(self) -> int: ...


class _WeakCounter:
    """The version of a tensor that cannot be aliased without its storage; the last one seen once it is gone."""

    __slots__ = ("last", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.last = 0 if tensor.is_inference() else tensor._version

    @property
    def _version(self) -> int:
        tensor = self.tensor()
        if tensor is not None and not tensor.is_inference():
            self.last = tensor._version
        return self.last


def counter(tensor: torch.Tensor) -> Counter:
    """A handle whose ``_version`` is the tensor's, now and after any later change in place, through views as well.

    Tensor subclasses, sparse and other tensors that have no exchangeable storage are followed by a weak reference:
    a change to one of them is seen only as long as the object that was saved is alive.
    """
    if type(tensor) in _ORDINARY:
        alias = tensor.detach()
        try:
            alias.data = _EMPTY
        except RuntimeError:  # sparse, meta and quantised tensors do not take another storage
            return _WeakCounter(tensor)
        return alias
    return _WeakCounter(tensor)


class Footprint:
    """What is remembered of a saved tensor once it is dropped: how it looked, and its version counter."""

    __slots__ = ("counter", "device", "dtype", "shape", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.counter = counter(tensor)
        self.version = self.counter._version

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} on {self.device}"

    def resembles(self, tensor: torch.Tensor) -> bool:
        """Whether another tensor has the same shape, dtype and device."""
        return self.shape == tensor.shape and self.dtype == tensor.dtype and self.device == tensor.device
