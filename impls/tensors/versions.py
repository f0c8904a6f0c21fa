"""What is remembered of a tensor that is dropped: its metadata, and how to tell whether it was changed in place since.

Autograd refuses a backward when a tensor that it saved was changed in place since. A checkpoint drops the tensor, so it
has to follow the tensor's version counter some other way: a detached alias shares the counter of the original, and giving
the alias an empty storage of its own keeps the counter while the original's storage can be freed.
"""

from __future__ import annotations

import weakref
from operator import attrgetter
from typing import Any, Protocol

import torch

from impls.torch_private import (
    disable_dispatch_modes,
    dispatch_mode_count,
    dispatch_modes,
    is_functional_tensor,
    make_subclass,
    set_version_counters,
)

_EMPTY = torch.empty(0)
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})

TensorMetadata = tuple[torch.Size, torch.dtype, torch.device, int, bool, bool]
# One call and one comparison for all of them: each tensor that is saved is asked, in forward and again. Whether it
# requires grad, and is a leaf, shows that a leaf was frozen or unfrozen since: operators then save fewer tensors, or more.
tensor_metadata = attrgetter("shape", "dtype", "device", "_version", "requires_grad", "is_leaf")


_nested_metadata = attrgetter("dtype", "device", "_version", "requires_grad", "is_leaf")


def any_tensor_metadata(tensor: torch.Tensor) -> TensorMetadata:
    """The metadata also of a nested tensor of strided layout, which has a shape for each of its parts, and none itself."""
    if tensor.is_nested and tensor.layout is torch.strided:
        shapes: Any = tuple(map(tuple, tensor._nested_tensor_size().tolist()))
        return shapes, *_nested_metadata(tensor)
    return tensor_metadata(tensor)


def describe(metadata: TensorMetadata) -> str:
    """Metadata in words, without the version."""
    shape, dtype, device, _, requires_grad, is_leaf = metadata
    made = "leaf" if is_leaf else "result"
    return f"{dtype} {list(shape)} on {device}, {made} that {'requires' if requires_grad else 'does not require'} grad"


class VersionProbe(Protocol):
    """Whatever tells the current version of the tensor that it was made for."""

    @property
    def _version(self) -> int: ...


class _WeakVersionProbe:
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


def hides_from_modes() -> bool:
    """Whether there are dispatch modes of the user, which are not to see what is no operator of the function.

    One of torch's own that traces, such as that of ``make_fx``, has to: a tensor that it has not seen made is a constant to it.
    """
    return bool(dispatch_mode_count()) and not any(mode.is_infra_mode() for mode in dispatch_modes())


def detach_without_modes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor detached, which no dispatch mode of the user gets to see: it is no operator of the function."""
    if not hides_from_modes():
        return tensor.detach()
    return _detach_unseen(tensor)


def _detach_unseen(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) in _ORDINARY:
        return make_subclass(torch.Tensor, tensor)  # detaches with all modes set aside
    with disable_dispatch_modes():
        return tensor.detach()


def copy_with_version(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the values, at the tensor's version, of which no dispatch mode of the user gets to see anything."""
    with disable_dispatch_modes(), torch.no_grad():
        copy = tensor.detach().clone()
    set_version_counters((copy,), (tensor._version,))
    return copy


def version_probe(tensor: torch.Tensor) -> VersionProbe:
    """A handle whose ``_version`` is the tensor's, now and after any later change in place, through views as well.

    Tensor subclasses, sparse and other tensors that have no exchangeable storage are followed by a weak reference:
    a change to one of them is seen only as long as the object that was saved is alive.
    """
    if type(tensor) in _ORDINARY and not is_functional_tensor(tensor):  # whose data is not to be set: torch would crash
        # The modes are counted here too, as a call takes longer.
        alias = _detach_unseen(tensor) if dispatch_mode_count() else tensor.detach()
        try:
            alias.data = _EMPTY
        except RuntimeError:  # sparse, meta and quantised tensors do not take another storage
            return _WeakVersionProbe(tensor)
        return alias
    return _WeakVersionProbe(tensor)
