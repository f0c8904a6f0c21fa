"""What Python keeps with a tensor besides its values: its class, and what is in its ``__dict__`` and slots."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from impls.torch_private import DisableTorchFunctionSubclass


def attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes by name; those in slots where they are set."""
    found = vars(tensor)
    if type(tensor) is not torch.Tensor:
        slots = [name for name in _slots(type(tensor)) if hasattr(tensor, name)]
        return {**found, **{name: getattr(tensor, name) for name in slots}} if slots else found
    return found


def set_attribute(tensor: torch.Tensor, name: str, value: Any) -> None:
    """Give the tensor an attribute, without calling its class's ``__setattr__``."""
    if type(tensor) is not torch.Tensor and name in _slots(type(tensor)):
        object.__setattr__(tensor, name, value)
    else:
        vars(tensor)[name] = value


def plain_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another object for the same values, as autograd makes it: a Tensor, if the subclass has no operators of its own."""
    return _with_tangent(tensor, torch.Tensor.detach)


def alias_with_own_version(tensor: torch.Tensor) -> torch.Tensor:
    """Another object for the same values, with a version counter of its own."""
    return _with_tangent(tensor, lambda one: one.data)


def _with_tangent(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What is made of a tensor, with its tangent, which a tensor without its history loses."""
    with DisableTorchFunctionSubclass():
        made, tangent = make(tensor), forward_ad.unpack_dual(tensor).tangent
        return made if tangent is None else forward_ad.make_dual(made, tangent)


def with_attributes(tensor: torch.Tensor, kind: type[torch.Tensor], wanted: Mapping[str, Any]) -> torch.Tensor:
    """Give a new tensor this class, and those of the attributes that it lacks."""
    tensor = as_class(tensor, kind)
    for name, value in wanted.items():
        if name not in attributes(tensor):  # what a subclass consists of
            set_attribute(tensor, name, value)
    return tensor


def as_class(tensor: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """A plain tensor turned into a subclass, itself if possible; other tensors as they are."""
    if type(tensor) is torch.Tensor and kind is not torch.Tensor:
        try:
            tensor.__class__ = kind
        except TypeError:  # slots make it another kind of object, and a node is between them
            return tensor.as_subclass(kind)
    return tensor


def _slots(kind: type[torch.Tensor]) -> list[str]:
    names: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    return names
