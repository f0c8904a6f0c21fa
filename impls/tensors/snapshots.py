"""Tensors that may be changed in place before they are handed over, and that are handed over as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from impls.tensors.attributes import attributes, with_attributes
from impls.tensors.versions import copy_with_version
from impls.torch_private import (
    DisableTorchFunction,
    disable_dispatch_modes,
    has_storage,
    is_transformed_tensor,
    neg_view,
    set_version_counters,
)

_Address = tuple[torch.device, int, int]  # empty memory is at 0 on every device; memory of numpy's may have several sizes


class Snapshot:
    """What tensors hold now, by the keys that they are given under, whether or not their versions will tell of changes.

    Memory that several share is copied once. Parameters and their views are left out: who changes one through ``.data`` changes
    it for everybody, as in a graph without regions. A tensor without memory of its own, as a sparse one, is copied by its
    operators.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.before: dict[int, _Before] = {}
        self.bytes: dict[_Address, torch.UntypedStorage] = {}  # copies, by what they are copies of
        self.copies: dict[int, torch.Tensor] = {}
        with disable_dispatch_modes(), torch.no_grad(), DisableTorchFunction():
            for key, tensor in tensors.items():
                if isinstance(tensor if tensor._base is None else tensor._base, torch.nn.Parameter):
                    continue
                if not _is_plain_memory(tensor):
                    self.copies[key] = copy_with_version(tensor)
                elif tensor.untyped_storage().nbytes() or not tensor.numel():  # else it is let go of, until somebody needs it
                    self.before[key] = before = _Before.of(tensor)
                    if before.address not in self.bytes:
                        self.bytes[before.address] = tensor.untyped_storage().clone()

    def changed(self) -> dict[int, torch.Tensor]:
        """Those that may not be what they were, as they were: at the same version, with the same strides, class and attributes.

        Copies of tensors without memory of their own are among them in any case, without attributes.
        """
        unchanged: dict[_Address, bool] = {}
        found = dict(self.copies)
        with disable_dispatch_modes(), torch.no_grad(), DisableTorchFunction():
            for key, before in self.before.items():
                is_same = before.is_unchanged()
                if is_same and before.address not in unchanged:
                    now, then = before.tensor.untyped_storage(), self.bytes[before.address]
                    unchanged[before.address] = torch.equal(_bytes_of(now), _bytes_of(then))
                if not is_same or not unchanged[before.address]:
                    found[key] = before.rebuild_on(self.bytes[before.address])
        return found


@dataclass(frozen=True, eq=False)
class _Before:
    """A tensor, and all that was to be known of it but the bytes of its memory."""

    tensor: torch.Tensor
    version: int
    address: _Address
    layout: tuple[Any, ...]  # offset, sizes and strides
    meaning: tuple[Any, ...]  # dtype, and whether the values are conjugated or negated
    kind: type[torch.Tensor]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Before:
        storage = tensor.untyped_storage()
        return cls(
            tensor,
            tensor._version,
            (tensor.device, storage.data_ptr(), storage.nbytes()),
            (tensor.storage_offset(), tuple(tensor.size()), tensor.stride()),
            (tensor.dtype, tensor.is_conj(), tensor.is_neg()),
            type(tensor),
            dict(attributes(tensor)),
        )

    def is_unchanged(self) -> bool:
        """Whether all of this is still so, whatever is in memory."""
        if not _is_plain_memory(self.tensor):
            return False
        now = _Before.of(self.tensor)
        return (
            (now.version, now.address, now.layout, now.meaning) == (self.version, self.address, self.layout, self.meaning)
            and now.kind is self.kind
            and now.attributes.keys() == self.attributes.keys()
            and all(now.attributes[name] is value for name, value in self.attributes.items())
        )

    def rebuild_on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor as it was, on a copy of its memory."""
        dtype, conjugated, negated = self.meaning
        made = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *self.layout)
        made = made.conj() if conjugated else made
        made = neg_view(made) if negated else made
        made = with_attributes(made, self.kind, self.attributes)
        set_version_counters((made,), (self.version,))
        return made


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a stretch of memory and no more; one of a subclass with operators of its own is not."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        return False
    if type(tensor).__torch_dispatch__ != torch.Tensor.__torch_dispatch__ or is_transformed_tensor(tensor):
        return False
    return has_storage(tensor)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
