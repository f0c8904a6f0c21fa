"""Which devices a call's arguments are on, and the states of random number generators there."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from impls.torch_private import tree_leaves

_HOSTS = ("cpu", "meta")


class DefaultDeviceType:
    """The device type of a region of which no argument is on an accelerator.

    To begin with, that is the accelerator this build of torch is made for, and "cuda" where there is none.
    """

    _chosen: ClassVar[str | None] = None

    @staticmethod
    def set_device_type(device: str) -> None:
        """Choose it for the whole process. Raises ValueError for what torch does not know as a device type."""
        if not isinstance(device, str):
            raise TypeError(f"device is {device!r}; it must be the name of a device type, such as 'cuda'")
        try:
            known = torch.device(device).index is None
        except RuntimeError as error:
            raise ValueError(f"device is {device!r}; it must be the name of a device type: {error}") from error
        if not known:
            raise ValueError(f"device is {device!r}; it must be the name of a device type, without an index")
        DefaultDeviceType._chosen = device

    @staticmethod
    def get_device_type() -> str:
        """The one that was chosen, or the initial one."""
        if DefaultDeviceType._chosen is not None:
            return DefaultDeviceType._chosen
        accelerator = torch.accelerator.current_accelerator(check_available=False)
        return "cuda" if accelerator is None else accelerator.type


def leaves(tree: Any) -> Iterator[Any]:
    """What stands in the containers that pytree knows, and in dataclasses, at any depth; else the value itself."""
    met: set[int] = set()  # dataclasses may refer to each other
    pending = [tree]
    while pending:
        for leaf in tree_leaves(pending.pop()):
            if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
                yield leaf
            elif id(leaf) not in met:
                met.add(id(leaf))
                pending.append([getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)])


def infer_device_type(*args: Any) -> str:
    """The accelerator type that the tensors among the arguments are on, at any depth; the default type if on none.

    Warns when they are on several: the default type if it is among them, else the first, is the one that counts.
    """
    found = [leaf.device.type for leaf in leaves(args) if torch.is_tensor(leaf) and leaf.device.type not in _HOSTS]
    kinds = list(dict.fromkeys(found))
    if len(kinds) < 2:
        return kinds[0] if kinds else DefaultDeviceType.get_device_type()
    default = DefaultDeviceType.get_device_type()
    kind = default if default in kinds else kinds[0]
    warnings.warn(
        f"the arguments are on devices of several types, {', '.join(kinds)}: random numbers and autocast are kept for "
        f"{kind} alone, and a region that draws on the others is recomputed with other numbers",
        stacklevel=2,
    )
    return kind


def devices_of(kind: str, *args: Any) -> list[int]:
    """Indices of the devices of that type which tensors among the arguments are on, at any depth."""
    return sorted({leaf.get_device() for leaf in leaves(args) if torch.is_tensor(leaf) and leaf.device.type == kind})


def _on(kind: str, device: int) -> tuple[Any, AbstractContextManager[Any]]:
    module = torch.get_device_module(kind)
    return module, module.device(device) if hasattr(module, "device") else nullcontext()


def device_states(kind: str, devices: Iterable[int]) -> list[torch.Tensor]:
    """The state of the generator of each of these devices."""
    states = []
    for device in devices:
        module, current = _on(kind, device)
        with current:
            states.append(module.get_rng_state())
    return states


def get_device_states(*args: Any) -> tuple[list[int], list[torch.Tensor]]:
    """Indices of the devices that tensors among the arguments are on, at any depth, and their generators' states.

    All are of the type that :func:`infer_device_type` gives. Not covered: devices that only the function knows of.
    """
    kind = infer_device_type(*args)
    devices = devices_of(kind, *args)
    return devices, device_states(kind, devices)


def set_device_states(devices: Sequence[int], states: Sequence[torch.Tensor], *, device_type: str | None = None) -> None:
    """Set the generators of these devices, of the default type if none is given, to the states beside them.

    Raises ValueError when there are not as many states as devices.
    """
    if len(devices) != len(states):
        raise ValueError(f"states has {len(states)} entries; it must have one for each of the {len(devices)} devices")
    for device, state in zip(devices, states, strict=True):
        module, current = _on(DefaultDeviceType.get_device_type() if device_type is None else device_type, device)
        with current:
            module.set_rng_state(state)
