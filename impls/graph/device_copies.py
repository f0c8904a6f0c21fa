"""Copies of a tensor on another device that come back as they were: values, strides, conjugation, negation, layout.

Of a strided tensor only the bytes it needs are copied. Dimensions that are expanded are left out, and of what remains
either every element is copied or the one stretch of memory they lie in, whichever is less.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from impls.graph.storage_spans import components, extent
from impls.torch_private import neg_view

_ORDINARY = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class StridedLayout:
    """How a strided tensor lies in memory; ``stored_size`` and ``stored_stride`` are those of what is copied of it."""

    device: torch.device
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    stored_size: tuple[int, ...]
    stored_stride: tuple[int, ...]
    conjugated: bool
    negated: bool

    def allocate(self) -> torch.Tensor:
        """Memory for the stored elements on the tensor's own device, laid out as they were; they are not written yet."""
        return torch.empty_strided(self.stored_size, self.stored_stride, dtype=self.dtype, device=self.device)

    def restore(self, stored_elements: torch.Tensor) -> torch.Tensor:
        """The tensor, made from the stored elements once they are back, without another copy."""
        tensor = stored_elements.as_strided(self.size, self.stride)
        tensor = tensor.conj() if self.conjugated else tensor
        return (neg_view(tensor) if self.negated else tensor).detach()


def strided_layout(tensor: torch.Tensor) -> StridedLayout | None:
    """The layout of a tensor; None for one that is not plain strided memory, which is copied by its own operators."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or not _is_native(tensor):
        return None
    size, stride = tuple(tensor.size()), tensor.stride()
    least = tuple(1 if step == 0 and n > 1 else n for n, step in zip(size, stride, strict=True))
    stretch = extent(least, stride)
    if stretch <= torch.Size(least).numel():
        return StridedLayout(tensor.device, tensor.dtype, size, stride, (stretch,), (1,), tensor.is_conj(), tensor.is_neg())
    return StridedLayout(tensor.device, tensor.dtype, size, stride, least, stride, tensor.is_conj(), tensor.is_neg())


def stored_elements(tensor: torch.Tensor, shape: StridedLayout) -> torch.Tensor:
    """The elements of a tensor that have to be copied, as a view of its memory that has no graph."""
    bare = tensor.detach()
    bare = neg_view(bare) if shape.negated else bare
    bare = bare.conj() if shape.conjugated else bare  # taken a second time, either view gives the memory as it is
    return bare.as_strided(shape.stored_size, shape.stored_stride, tensor.storage_offset())


def size_in_bytes(tensor: torch.Tensor, shape: StridedLayout | None) -> int:
    """What a copy of the tensor takes."""
    if shape is not None:
        return torch.Size(shape.stored_size).numel() * tensor.element_size()
    return sum(part.numel() * part.element_size() for part in components(tensor))


@torch.no_grad()
def replica(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the same device that differs in nothing but its memory; it has no graph."""
    shape = strided_layout(tensor)
    if shape is None:
        return tensor.detach().clone()
    return shape.restore(shape.allocate().copy_(stored_elements(tensor, shape)))


def _is_native(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of the class that its device's own factories give; that of a subclass has operators of its own."""
    return type(tensor) in _ORDINARY or type(tensor) is type(torch.empty(0, device=tensor.device))
