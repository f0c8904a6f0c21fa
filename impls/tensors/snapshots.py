"""Tensors that may be changed in place before they are handed over, and that are handed over as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from impls.tensors.attributes import attributes, with_attributes
from impls.tensors.versions import copy_with_version
from impls.torch_private import disable_dispatch_modes, is_transformed_tensor, neg_view, set_version_counters

_Address = tuple[torch.device, int]  # empty ones are at 0 on every device


class Snapshot:
    """What tensors hold now, by the keys that they are given under, whether or not their versions will tell of changes.

    Memory that several share is copied once. Parameters are left out: who changes one through ``.data`` changes it for
    everybody, as in a graph without regions. A tensor without memory of its own, as a sparse one, is copied by its operators.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.before: dict[int, _Before] = {}
        self.bytes: dict[_Address, torch.UntypedStorage] = {}  # copies, by the addresses of what they are copies of
        self.copies: dict[int, torch.Tensor] = {}
        with disable_dispatch_modes(), torch.no_grad():
            for key, tensor in tensors.items():
                if isinstance(tensor, torch.nn.Parameter):
                    continue
                if not _is_plain_memory(tensor):
                    self.copies[key] = copy_with_version(tensor)
                    continue
                self.before[key] = before = _Before.of(tensor)
                if before.address not in self.bytes:
                    self.bytes[before.address] = tensor.untyped_storage().clone()

    def changed(self) -> dict[int, torch.Tensor]:
        """Those that are not what they were, as they were: at the same version, with the same strides, class and attributes."""
        unchanged: dict[_Address, bool] = {}
        found = dict(self.copies)
        with disable_dispatch_modes(), torch.no_grad():
            for key, before in self.before.items():
                is_same = before == _Before.of(before.tensor)
                if is_same and before.address not in unchanged:
                    now, then = before.tensor.untyped_storage(), self.bytes[before.address]
                    unchanged[before.address] = torch.equal(_bytes_of(now), _bytes_of(then))
                if not is_same or not unchanged[before.address]:
                    found[key] = before.on(self.bytes[before.address])
        return found


@dataclass(frozen=True)
class _Before:
    """A tensor, its version, and where in memory it was."""

    tensor: torch.Tensor
    version: int
    address: _Address
    offset: int | torch.SymInt
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Before:
        address = tensor.device, tensor.untyped_storage().data_ptr()
        return cls(tensor, tensor._version, address, tensor.storage_offset(), tuple(tensor.size()), tensor.stride())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Before) and self.tensor is other.tensor and self._place() == other._place()

    def _place(self) -> tuple[object, ...]:
        return self.version, self.address, self.offset, self.size, self.stride

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor as it was, on a copy of its memory."""
        made = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device)
        made = made.set_(storage, self.offset, self.size, self.stride)
        made = made.conj() if self.tensor.is_conj() else made
        made = neg_view(made) if self.tensor.is_neg() else made
        made = with_attributes(made, type(self.tensor), attributes(self.tensor))
        set_version_counters((made,), (self.version,))
        return made


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a stretch of memory and no more; one of a subclass with operators of its own is not."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        return False
    return type(tensor).__torch_dispatch__ == torch.Tensor.__torch_dispatch__ and not is_transformed_tensor(tensor)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
