"""Which memory a tensor reads, told by storage: addresses and versions are reused, storages that are referred to are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from impls.torch_private import is_traceable_wrapper_subclass

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class Span(NamedTuple):
    """The bytes from ``start`` up to ``end`` of a storage, which is told by the address of its C++ object."""

    storage: int
    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Whether the two spans of bytes meet; views that interleave without sharing a byte count as meeting."""
        return self.storage == other.storage and self.start < other.end and other.start < self.end


def components(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The strided tensors that a tensor is made of: itself, the parts of a sparse or nested one, what a subclass wraps."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from components(getattr(tensor, name))
    if tensor.is_nested and tensor.layout is torch.strided:
        yield tensor.values()
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in _COMPRESSED:
        yield from (getattr(tensor, name)() for name in (*_COMPRESSED[tensor.layout], "values"))


def storages(tensor: torch.Tensor) -> tuple[StorageWeakRef, ...]:
    """Weak references to the storages that a tensor reads; none for layouts that have no storage torch shows (mkldnn).

    As long as such a reference is held, no other storage gets the same number.
    """
    return tuple(StorageWeakRef(part.untyped_storage()) for part in components(tensor))


def shares_storage(tensor: torch.Tensor, memory: tuple[StorageWeakRef, ...]) -> bool:
    """Whether a tensor reads any of these storages."""
    numbers = {reference.cdata for reference in memory}
    return any(part.untyped_storage()._cdata in numbers for part in components(tensor))


def extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements lie between the first and the last of a strided tensor, these two included; 0 where it is empty."""
    return 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def spans(tensor: torch.Tensor, *, whole: bool = False) -> list[Span]:
    """The spans of bytes that a tensor reads, or with ``whole`` all bytes of its storages, whatever their size becomes."""
    found = []
    for part in components(tensor):
        number, item = part.untyped_storage()._cdata, part.element_size()
        start = int(part.storage_offset()) * item
        end = start + extent(tuple(part.size()), part.stride()) * item
        found.append(Span(number, 0, 1 << 63) if whole else Span(number, start, end))
    return found
