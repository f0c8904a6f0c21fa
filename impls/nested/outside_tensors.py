"""What a region saved that was there before it: parameters, buffers, constants, and whatever else its function reads.

A recomputation has to read the same values again. Another tensor in its place, by a name that is bound late, an attribute that
is assigned or ``.data`` that is swapped, may look the same, and the gradient is wrong. So a region keeps the storage of leaves
that it saved and did not make, as autograd would; what its function makes anew in each run has equal values in both. Results of
operators are only compared while somebody else keeps them: dropping them is what checkpointing is for.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from impls.tensors.versions import Look, look

_Layout = tuple[Any, tuple[int, ...]]  # offset in the storage, and strides
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
_has_storage, _reference = torch._C._has_storage, weakref.ref


class Origin:
    """Where a saved tensor was, and the tensor that it is, or is a view of; its storage, once that is known to be from outside.

    Regions around the one that saved it have the same object, so that it is known to all of them.
    """

    __slots__ = ("address", "followed", "layout", "seen", "storage", "whole")

    def __init__(self, tensor: torch.Tensor, whole: torch.Tensor, seen: Look) -> None:
        self.address: int = tensor.data_ptr()
        self.layout: _Layout | None = None if whole is tensor else (tensor.storage_offset(), tensor.stride())
        self.whole, self.seen = _reference(whole), seen
        self.storage: torch.UntypedStorage | None = None
        self.followed = False


def origin(tensor: torch.Tensor, whole: torch.Tensor, seen: Look) -> Origin | None:
    """The origin of a saved tensor; None where there is no memory to tell it by, or a subclass that hides it."""
    ordinary = type(tensor) in _ORDINARY and type(whole) in _ORDINARY and _has_storage(whole)
    return Origin(tensor, whole, seen) if ordinary else None


def keep(origins: Iterable[Origin], output: Any, *, watched: bool) -> None:
    """Forward is over: keep the storages of what was there before it.

    What forward made is gone by now, but for its output, and for what the function has put elsewhere. Not kept is the storage
    of a tensor that got another one in forward: whoever swaps it there does so to free it. Where somebody watches what
    is saved, only parameters are kept, for the others may be what is watched, and is dropped.
    """
    outputs: set[int] | None = None
    for one in origins:
        whole = one.whole()
        if whole is None:
            continue
        if type(whole) is torch.Tensor:
            if watched:
                continue
            if whole.is_leaf:
                if outputs is None:
                    outputs = {id(output)} if isinstance(output, torch.Tensor) else {id(leaf) for leaf in tree_leaves(output)}
                if id(whole) in outputs:
                    continue
        if one.layout is None:
            one.layout = whole.storage_offset(), whole.stride()
        storage = whole.untyped_storage()
        if storage.data_ptr() + one.layout[0] * whole.itemsize == one.address:
            one.followed = True
            if whole.is_leaf:
                one.storage = storage


def replaced(origin: Origin, tensor: torch.Tensor) -> bool:
    """Whether a tensor that is elsewhere than the one that was saved has other values, as far as those are kept."""
    if not origin.followed or tensor.is_quantized:
        return False
    storage = origin.storage
    if storage is None:
        whole = origin.whole()
        if whole is None:
            return False
        storage = whole.untyped_storage()
    if not storage.nbytes():  # whoever frees it means to fill it again
        return False
    if origin.seen[:3] != look(tensor)[:3] or not _has_storage(tensor):
        return True
    if "torch._dynamo" in sys.modules:  # which would compile what a hook does, if a compiled function saves a tensor
        return bool(torch.compiler.disable(_differs)(origin, storage, tensor))
    return _differs(origin, storage, tensor)


def _differs(origin: Origin, storage: torch.UntypedStorage, tensor: torch.Tensor) -> bool:
    assert origin.layout is not None
    offset, stride = origin.layout
    with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        before = _raw(tensor, storage, offset, stride)
        return not _equal(before, _raw(tensor, tensor.untyped_storage(), int(tensor.storage_offset()), tensor.stride()))


def _raw(tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the same shape over a storage, which is conjugated or negated for neither."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, offset, tensor.shape, stride)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
