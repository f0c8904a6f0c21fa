"""What a region saved that was there before it: parameters, buffers, constants, and whatever else its function reads.

A recomputation has to read the same values again. Another tensor in its place, by a name that is bound late, an attribute that
is assigned or ``.data`` that is swapped, may look the same, and the gradient is wrong. So a region keeps the storage of leaves
that it saved and did not make, as autograd would; what its function makes anew in each run has equal values in both. Results of
operators are only compared while somebody else keeps them: dropping them is what checkpointing is for.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from impls.tensors.versions import TensorMetadata, VersionProbe, tensor_metadata
from impls.torch_private import DisableTorchDispatch, DisableTorchFunction, has_storage, tree_leaves

_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # stand in for dtypes of that size which cannot be compared
_reference = weakref.ref


class _Layout(NamedTuple):
    """How a tensor lies in its storage, and whether it is lazily conjugated or negated."""

    offset: int
    stride: tuple[int, ...]
    conjugated: bool
    negated: bool


def _layout(tensor: torch.Tensor) -> _Layout:
    return _Layout(int(tensor.storage_offset()), tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _no_tensor() -> None:
    return None


class Origin:
    """Where a saved tensor was, and the tensor that it is, or is a view of; its storage, once that is known to be from outside.

    Regions around the one that saved it have the same object, so that it is known to all of them.
    """

    __slots__ = ("address", "base", "layout", "metadata", "probe", "storage")

    def __init__(self, tensor: torch.Tensor, base: torch.Tensor, probe: VersionProbe, metadata: TensorMetadata) -> None:
        self.address: int = tensor.data_ptr()
        self.layout: _Layout | None = None if base is tensor else _layout(tensor)
        self.base: Callable[[], torch.Tensor | None] = _reference(base)
        self.probe, self.metadata = probe, metadata
        self.storage: torch.UntypedStorage | None = None

    def has_moved(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not where this one was, or is read from there in another way."""
        layout = self.layout
        return self.address != tensor.data_ptr() or (
            layout is not None
            and (layout.stride != tensor.stride() or layout.conjugated != tensor.is_conj() or layout.negated != tensor.is_neg())
        )

    def current_storage(self) -> torch.UntypedStorage | None:
        """The storage of the tensor that this one is, or is a view of, if that is alive and still where it was."""
        base = self.base()
        if base is None:
            return None
        if self.layout is None:
            if base.shape != self.metadata[0]:  # it has got another storage, which may begin at the same address
                return None
            self.layout = _layout(base)
        storage = base.untyped_storage()
        return storage if storage.data_ptr() + self.layout.offset * self.metadata[1].itemsize == self.address else None


def find_origin(tensor: torch.Tensor, base: torch.Tensor, probe: VersionProbe, metadata: TensorMetadata) -> Origin | None:
    """The origin of a saved tensor; None where there is no memory to tell it by, or a subclass that hides it."""
    ordinary = type(tensor) in _ORDINARY and type(base) in _ORDINARY and has_storage(base)
    return Origin(tensor, base, probe, metadata) if ordinary else None


def keep_storages(origins: Iterable[Origin], output: Any, *, watched: bool) -> None:
    """Forward is over: keep the storages of leaves that were there before it.

    What forward made is gone by now, but for its output, and for what the function has put elsewhere. A tensor that got
    another storage in forward is not followed: whoever swaps it there does so to free it. An output, or a result of an
    operator, is compared with only as long as somebody else has it. Where somebody watches what is saved, only parameters
    are followed, for the others may be what is watched, and is dropped.
    """
    outputs: set[int] | None = None
    for one in origins:
        base = one.base()
        if base is None:
            continue
        ordinary = type(base) is torch.Tensor
        storage = one.current_storage()
        if storage is None or (ordinary and watched):
            one.base = _no_tensor
        elif base.is_leaf:
            if ordinary and outputs is None:
                outputs = {id(output)} if isinstance(output, torch.Tensor) else {id(leaf) for leaf in tree_leaves(output)}
            if not ordinary or id(base) not in (outputs or ()):
                one.storage, one.base = storage, _no_tensor


def has_other_values(origin: Origin, tensor: torch.Tensor) -> bool:
    """Whether a tensor that is elsewhere than the one that was saved has other values, as far as those are still there."""
    storage = origin.current_storage() if origin.storage is None else origin.storage
    if storage is None or origin.layout is None or tensor.is_quantized:
        return False
    if origin.probe._version != origin.metadata[3]:  # then its values are not those that were saved, as unpacking it will tell
        return False
    if not _is_long_enough(storage, origin.layout, origin.metadata):  # whoever frees it means to fill it again
        return False
    if origin.metadata[:3] != tensor_metadata(tensor)[:3] or not has_storage(tensor):
        return True
    if "torch._dynamo" in sys.modules:  # which would compile what a hook does, if a compiled function saves a tensor
        return bool(torch.compiler.disable(_values_differ)(storage, origin.layout, tensor))
    return _values_differ(storage, origin.layout, tensor)


def _is_long_enough(storage: torch.UntypedStorage, layout: _Layout, metadata: TensorMetadata) -> bool:
    """Whether a storage is still as long as a tensor that looks so needs it."""
    steps = sum((size - 1) * step for size, step in zip(metadata[0], layout.stride, strict=True))
    return 0 in metadata[0] or (layout.offset + steps + 1) * metadata[1].itemsize <= storage.nbytes()


def _values_differ(storage: torch.UntypedStorage, layout: _Layout, tensor: torch.Tensor) -> bool:
    with torch.no_grad(), DisableTorchDispatch(), DisableTorchFunction():
        both = (storage, layout), (tensor.untyped_storage(), _layout(tensor))
        try:
            return not _equal(*(_over_storage(tensor, tensor.dtype, *one) for one in both))
        except NotImplementedError:  # for dtypes that torch only stores
            bits = _BITS[tensor.itemsize]
            return both[0][1][2:] != both[1][1][2:] or not _equal(*(_over_storage(tensor, bits, *one) for one in both))


def _over_storage(tensor: torch.Tensor, dtype: torch.dtype, storage: torch.UntypedStorage, layout: _Layout) -> torch.Tensor:
    """What a tensor of the same shape would be over a storage."""
    raw = torch.empty(0, dtype=dtype, device=tensor.device).set_(storage, layout.offset, tensor.shape, layout.stride)
    if dtype is tensor.dtype and layout.conjugated:
        raw = raw.conj()
    return raw.neg() if dtype is tensor.dtype and layout.negated else raw


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
