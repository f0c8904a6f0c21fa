"""The accelerator that this build of torch is made for, looked at without starting it."""

from __future__ import annotations

import functools
from types import ModuleType

import torch


@functools.cache
def accelerator() -> str | None:
    """The device type of the accelerator that this build of torch is made for, None for a CPU build."""
    device = torch.accelerator.current_accelerator(check_available=False)
    return None if device is None or device.type == "cpu" else device.type


def initialized_module() -> ModuleType | None:
    """The module of the accelerator, once its runtime has been started; looking never starts it."""
    kind = accelerator()
    if kind is None:
        return None
    module = torch.get_device_module(kind)
    return module if getattr(module, "_initialized", True) and module.is_available() else None


def is_capturing() -> bool:
    """Whether the accelerator records a graph of kernels, in which states of generators cannot be read or set."""
    return getattr(initialized_module(), "is_current_stream_capturing", bool)()
