"""Saved tensors that live on another device, the host most of all, until backward asks for them.

What lives there already, or is too small to be worth the way, stays where it is, and changing it in place is an error as
it is in plain autograd. What is moved is a copy of the values at the time of saving, so changing the original does it no
harm and is no error; plain autograd would refuse that backward.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from impls.graph.device_copies import StridedLayout, size_in_bytes, stored_elements, strided_layout
from impls.graph.hooks import saved_tensors_hooks
from impls.graph.streams import copy_streams, keep_until, release_finished


class _MovedTensor:
    """A saved tensor on the other device. Only the graph owns it; the context sees it through a weak reference."""

    __slots__ = ("__weakref__", "copy", "device", "events", "layout", "root")

    def __init__(self, tensor: torch.Tensor, shape: StridedLayout | None, target: torch.device, pin: bool) -> None:
        self.device, self.layout, self.root = tensor.device, shape, weakref.ref(_root(tensor))
        self.events: tuple[Any, ...] = ()
        route = copy_streams(tensor.device) if pin and shape is not None and target.type == "cpu" else None
        if shape is None:
            self.copy = tensor.detach().to(target, copy=True)
        elif route is None:
            self.copy = torch.empty(shape.stored_size, dtype=shape.dtype, device=target).copy_(stored_elements(tensor, shape))
        else:
            self.copy, ready = route.fetch(stored_elements(tensor, shape))
            self.events = (ready,)

    def move_back(self) -> torch.Tensor:
        if self.layout is None:
            return self.copy.to(self.device)
        if not self.events:
            return self.layout.restore(self.layout.allocate().copy_(self.copy))
        route, ready = copy_streams(self.device), self.events[0]
        assert route is not None  # it was there when the copy was made, and side streams are never closed
        target, done = route.send(self.copy, self.layout.allocate, ready)
        self.events = (ready, done)  # copies back are made in order, so the latest is the one to wait for
        return self.layout.restore(target)

    def __del__(self) -> None:
        for event in getattr(self, "events", ()):
            keep_until(event, self.copy)


class _MoveHooks:
    """The two hooks. A result that is saved again unchanged is found by its object and version, and not copied again."""

    def __init__(self, target: torch.device, pin: bool, pin_type: str | None, min_bytes: int) -> None:
        self.target, self.pin, self.pin_type, self.min_bytes = target, pin, pin_type, min_bytes
        self.copies: weakref.WeakValueDictionary[tuple[Any, ...], _MovedTensor] = weakref.WeakValueDictionary()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _MovedTensor:
        release_finished()
        if tensor.device.type == "meta" or tensor.device == _with_index(self.target):
            return tensor
        shape = strided_layout(tensor)
        if size_in_bytes(tensor, shape) < self.min_bytes:
            return tensor
        pin = self.pin and self.pin_type in (None, tensor.device.type)
        root = _root(tensor)
        if _may_change_unseen(root) or _has_no_place(tensor, root, shape):
            return _MovedTensor(tensor, shape, self.target, pin)
        # Equal versions mean equal values for one counter alone, and views of one base are sure to have the same one.
        place = () if shape is None else (tensor.untyped_storage()._cdata, tensor.storage_offset(), shape)
        key = (id(root), tensor._version, *place)
        moved = self.copies.get(key)
        if moved is None or moved.root() is not root:
            moved = self.copies[key] = _MovedTensor(tensor, shape, self.target, pin)
        return moved

    def unpack(self, packed: torch.Tensor | _MovedTensor) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        release_finished()
        with torch.no_grad():
            return packed.move_back()


def _root(tensor: torch.Tensor) -> torch.Tensor:
    base = tensor._base if tensor._is_view() else None
    return tensor if base is None else base


def _may_change_unseen(root: torch.Tensor) -> bool:
    """Whether it is a weight, a statistic or another leaf.

    No version tells that ``.data``, a batch norm or a fused optimizer has changed one between two saves.
    """
    return root.is_leaf


def _has_no_place(tensor: torch.Tensor, root: torch.Tensor, shape: StridedLayout | None) -> bool:
    """Whether it is a view that cannot be told from another one of the same tensor, as of a tensor subclass."""
    return shape is None and root is not tensor


def _with_index(device: torch.device) -> torch.device:
    """The device as its tensors name it: ``cuda`` is the current one, and the CPU has no index."""
    if device.type == "cpu":
        return torch.device("cpu")
    return device if device.index is not None else torch.empty(0, device=device).device


class saved_on(saved_tensors_hooks):  # noqa: N801 (named like its siblings)
    """While the context is open, tensors that autograd saves on this thread live on ``device`` until backward unpacks them.

    They come back on the device they were on, bit for bit, with their strides, layout, conjugation and class. A result
    that is saved several times at one version is copied once as long as a graph needs the copy. A leaf, such as a weight or a
    statistic, is copied each time, since it may be changed where no version tells, and so is a view of a tensor subclass. Every
    unpack makes a new tensor, which is autograd's. Expanded dimensions are not copied, nor, of strided tensors, what lies
    between elements.

    Args:
        device: where saved tensors live, a ``torch.device`` or what names one.
        pin_memory: on the host, keep them in pinned memory and copy on side streams, in order of events, so that no host
            thread waits; a snapshot takes as much memory on the device until it has been copied. Without an accelerator
            that has streams and events, for layouts other than strided and for tensor subclasses, copies are waited for;
            where memory cannot be pinned it is pageable.
        min_bytes: tensors of which fewer bytes would be copied stay where they are.

    A tensor that stays is checked as in plain autograd: RuntimeError at unpack if it was changed in place since. A tensor
    that was moved may be changed. Raises TypeError or ValueError for arguments that are not as described.
    Source: ``torch.autograd.graph.save_on_cpu``. Not seen are changes that no version tells, as through ``.data`` or numpy: of
    a tensor that stays, as in plain autograd, and of a result between two saves. Tensors on ``meta`` stay there.
    """

    def __init__(self, device: torch.device | str | int, *, pin_memory: bool = False, min_bytes: int = 0) -> None:
        mover = _move_hooks(device, pin_memory, None, min_bytes)
        super().__init__(mover.pack, mover.unpack)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        release_finished()


class save_on_cpu(saved_on):  # noqa: N801 (torch's name)
    """``saved_on("cpu")`` with the signature of ``torch.autograd.graph.save_on_cpu``.

    Args:
        pin_memory: see :class:`saved_on`.
        device_type: the accelerator that memory is pinned for; what comes from another one is copied and waited for.
        min_bytes: see :class:`saved_on`.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda", *, min_bytes: int = 0) -> None:
        if not isinstance(device_type, str):
            raise TypeError(f"device_type is {device_type!r}; it must be a str such as 'cuda'")
        if _device("device_type", device_type).index is not None:
            raise ValueError(f"device_type is {device_type!r}; it must be a type alone, without an index")
        mover = _move_hooks("cpu", pin_memory, device_type, min_bytes)
        saved_tensors_hooks.__init__(self, mover.pack, mover.unpack)


def _move_hooks(device: Any, pin_memory: Any, pin_type: str | None, min_bytes: Any) -> _MoveHooks:
    target = _device("device", device)
    if target.type == "meta":
        raise ValueError("device is meta, which keeps no values, so saved tensors cannot come back from there")
    if not isinstance(pin_memory, bool):
        raise TypeError(f"pin_memory is {pin_memory!r}; it must be True or False")
    if not isinstance(min_bytes, int) or isinstance(min_bytes, bool):
        raise TypeError(f"min_bytes is {min_bytes!r}; it must be an int, in bytes")
    if min_bytes < 0:
        raise ValueError(f"min_bytes is {min_bytes}; it must be 0 or more")
    return _MoveHooks(target, pin_memory, pin_type, min_bytes)


def _device(name: str, device: Any) -> torch.device:
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise TypeError(f"{name} is {device!r}; it must be a torch.device or the name of one")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{name} is {device!r}, which torch does not know: {error}") from error
