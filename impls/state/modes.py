"""The modes that operators obey: captured where forward runs, put in force for a recomputation, and put back after it.

Not covered: ContextVars, and TorchFunctionModes other than the ``torch.device`` context.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch.utils._device import DeviceContext

from impls.state import accelerators

# What a region asks of torch each time, found once.
_autocasts, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
_autocast_cache, _default_dtype = torch.is_autocast_cache_enabled, torch.get_default_dtype
_mode_count = torch._C._len_torch_function_stack
_deterministic = torch._C._get_deterministic_algorithms
_warns_only = torch._C._get_deterministic_algorithms_warn_only


class Modes(NamedTuple):
    """Autocast by device type as (type, enabled, dtype), its cache, device context, default dtype, determinism."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    device: torch.device | None
    dtype: torch.dtype
    deterministic: tuple[bool, bool]


def _device_context() -> torch.device | None:
    for index in range(torch._C._len_torch_function_stack() - 1, -1, -1):
        mode = torch._C._get_function_stack_at(index)
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def present() -> Modes:
    """The modes in force on this thread."""
    kind = accelerators.accelerator()
    host = "cpu", _autocasts("cpu"), _autocast_dtype("cpu")
    autocast = (host,) if kind is None else (host, (kind, _autocasts(kind), _autocast_dtype(kind)))
    device = _device_context() if _mode_count() else None
    return Modes(autocast, _autocast_cache(), device, _default_dtype(), (_deterministic(), _warns_only()))


class under:  # noqa: N801 - reads as a function where it is used, and costs a third of a generator
    """Put the wanted modes in force; afterwards the ones that were there before are."""

    __slots__ = ("present", "stack", "wanted")

    def __init__(self, wanted: Modes) -> None:
        self.wanted, self.present = wanted, present()
        self.stack: ExitStack | None = None

    def __enter__(self) -> None:
        if self.wanted != self.present:
            with ExitStack() as stack:
                self.enter(stack)
                self.stack = stack.pop_all()

    def enter(self, stack: ExitStack) -> None:
        wanted, found = self.wanted, self.present
        if (wanted.autocast, wanted.cache) != (found.autocast, found.cache):
            for kind, enabled, dtype in wanted.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, wanted.cache))
        if wanted.device != found.device:
            stack.enter_context(torch.device("cpu") if wanted.device is None else wanted.device)
        _set_global(wanted)

    def __exit__(self, *error: Any) -> None:
        # These are put back in any case: the function may set them and be stopped before it sets them back.
        _set_global(self.present)
        if self.stack is not None:
            self.stack.__exit__(*error)


def _set_global(wanted: Modes) -> None:
    if _default_dtype() != wanted.dtype:
        torch.set_default_dtype(wanted.dtype)
    if (_deterministic(), _warns_only()) != wanted.deterministic:
        torch._C._set_deterministic_algorithms(wanted.deterministic[0], warn_only=wanted.deterministic[1])
