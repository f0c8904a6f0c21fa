"""What a recomputation restores besides its inputs: random number generators, a stream, the modes that operators obey.

Captured where forward runs, put in force for the recomputation, and put back after it, also after an error. Not
covered: Python's and numpy's generators, torch.Generator objects that are not arguments, ContextVars, and
TorchFunctionModes other than the ``torch.device`` context.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils._device import DeviceContext

# What a region asks of torch each time, found once.
_autocasts, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
_autocast_cache, _default_dtype = torch.is_autocast_cache_enabled, torch.get_default_dtype
_mode_count = torch._C._len_torch_function_stack
_deterministic = torch._C._get_deterministic_algorithms
_warns_only = torch._C._get_deterministic_algorithms_warn_only
_NOTHING = nullcontext()


class Modes(NamedTuple):
    """Autocast by device type as (type, enabled, dtype), its cache, device context, default dtype, determinism."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    device: torch.device | None
    dtype: torch.dtype
    deterministic: tuple[bool, bool]


@functools.cache
def accelerator() -> str | None:
    """The device type of the accelerator that this build of torch is made for, None for a CPU build."""
    device = torch.accelerator.current_accelerator(check_available=False)
    return None if device is None or device.type == "cpu" else device.type


def initialised() -> ModuleType | None:
    """The module of the accelerator, once its runtime has been started; looking never starts it."""
    kind = accelerator()
    if kind is None:
        return None
    module = torch.get_device_module(kind)
    return module if getattr(module, "_initialized", True) and module.is_available() else None


def is_capturing() -> bool:
    """Whether the accelerator records a graph of kernels, in which states of generators cannot be read or set."""
    return getattr(initialised(), "is_current_stream_capturing", bool)()


def stream() -> Any:
    """The stream that is current on the accelerator's current device; None without a runtime that has streams."""
    return getattr(initialised(), "current_stream", _none)()


def _none() -> None:
    return None


def on(wanted: Any) -> AbstractContextManager[Any]:
    """A context in which this stream is current; None is any. What passes to it and back from another is waited for."""
    present = None if wanted is None else stream()
    return _NOTHING if wanted is None or wanted == present else _moved(wanted, present)


@contextmanager
def _moved(wanted: Any, present: Any) -> Iterator[None]:
    wanted.wait_stream(present)
    try:
        with torch.get_device_module(wanted.device).stream(wanted):
            yield
    finally:
        present.wait_stream(wanted)


def _device_context() -> torch.device | None:
    for index in range(torch._C._len_torch_function_stack() - 1, -1, -1):
        mode = torch._C._get_function_stack_at(index)
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def modes() -> Modes:
    """The modes in force on this thread."""
    kind = accelerator()
    host = "cpu", _autocasts("cpu"), _autocast_dtype("cpu")
    autocast = (host,) if kind is None else (host, (kind, _autocasts(kind), _autocast_dtype(kind)))
    device = _device_context() if _mode_count() else None
    return Modes(autocast, _autocast_cache(), device, _default_dtype(), (_deterministic(), _warns_only()))


class under:  # noqa: N801 - reads as a function where it is used, and costs a third of a generator
    """Put the wanted modes in force; afterwards the ones that were there before are."""

    __slots__ = ("present", "stack", "wanted")

    def __init__(self, wanted: Modes) -> None:
        self.wanted, self.present = wanted, modes()
        self.stack: ExitStack | None = None

    def __enter__(self) -> None:
        if self.wanted != self.present:
            with ExitStack() as stack:
                self.enter(stack)
                self.stack = stack.pop_all()

    def enter(self, stack: ExitStack) -> None:
        wanted, present = self.wanted, self.present
        if (wanted.autocast, wanted.cache) != (present.autocast, present.cache):
            for kind, enabled, dtype in wanted.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, wanted.cache))
        if wanted.device != present.device:
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


GeneratorStates = list[tuple[torch.Generator, torch.Tensor]]


def generators(explicit: tuple[torch.Generator, ...] = ()) -> GeneratorStates:
    """The state of the CPU's generator, of every device's default generator, and of those given explicitly.

    Every device counts, not only those of the arguments: a region may draw on a device that appears inside it alone.
    A runtime that has not been started is left alone.
    """
    module = initialised()
    devices = () if module is None else getattr(module, "default_generators", ())
    return [(g, g.get_state()) for g in (torch.default_generator, *devices, *explicit)]


def set_generators(states: GeneratorStates) -> None:
    """Set each generator to the state that stands beside it."""
    for generator, state in states:
        generator.set_state(state)
