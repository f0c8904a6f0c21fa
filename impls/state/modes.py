"""The modes that operators obey: captured where forward runs, put in force for a recomputation, and put back after it.

Not covered: ContextVars, and TorchFunctionModes other than the ``torch.device`` context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from impls.state import accelerators
from impls.torch_private import (
    DeviceContext,
    TorchDispatchMode,
    deterministic_algorithms,
    deterministic_algorithms_warn_only,
    dispatch_mode_count,
    dispatch_modes,
    function_mode_at,
    function_mode_count,
    function_state,
    set_deterministic_algorithms,
    set_function_state,
)

# What a region asks of torch each time, found once.
_autocasts, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
_autocast_cache, _default_dtype = torch.is_autocast_cache_enabled, torch.get_default_dtype
_enter_autocast, _leave_autocast = torch.autocast_increment_nesting, torch.autocast_decrement_nesting


# The default dtype, and whether algorithms have to be deterministic, and only warn where they are not.
ProcessWide = tuple[torch.dtype, tuple[bool, bool]]


class Modes(NamedTuple):
    """Autocast by device type as (type, enabled, dtype), its cache, the device context; and the modes of all threads.

    ``function_state`` says whether ``__torch_function__`` of subclasses and of modes is called.
    """

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    device: torch.device | None
    function_state: Any
    process_wide: ProcessWide


def _device_context() -> torch.device | None:
    for index in range(function_mode_count() - 1, -1, -1):
        mode = function_mode_at(index)
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


class PassThrough(TorchDispatchMode):
    """Does nothing, where forward had dispatch modes and a recomputation has none.

    Below a dispatch mode, whatever it does, composite operators call others: ``linear`` adds the bias to a tensor of its own,
    not in place, so what is saved is at another version.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class CompilablePassThrough(PassThrough):
    """The same if forward had none but torch's own, below which what is compiled runs as it is compiled."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """As torch asks."""
        return True


def pass_through() -> type[PassThrough] | None:
    """What a recomputation without dispatch modes has in place of those in force here; None if there are none."""
    if not dispatch_mode_count():
        return None
    return CompilablePassThrough if all(mode.is_infra_mode() for mode in dispatch_modes()) else PassThrough


def current_modes() -> Modes:
    """The modes in force on this thread, and those of all threads."""
    kind = accelerators.accelerator()
    host = "cpu", _autocasts("cpu"), _autocast_dtype("cpu")
    autocast = (host,) if kind is None else (host, (kind, _autocasts(kind), _autocast_dtype(kind)))
    device = _device_context() if function_mode_count() else None
    return Modes(autocast, _autocast_cache(), device, function_state(), process_wide())


def enter_modes(wanted: Modes, found: Modes) -> ExitStack | None:
    """The contexts that put a thread's modes in force in place of those that were found; None if they are the same."""
    cast = (wanted.autocast, wanted.cache) != (found.autocast, found.cache)
    if not cast and (wanted.device, wanted.function_state) == (found.device, found.function_state):
        return None
    with ExitStack() as stack:
        stack.enter_context(with_function_state(wanted.function_state))
        if cast:
            for kind, enabled, dtype in wanted.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, wanted.cache))
        if wanted.device != found.device:
            stack.enter_context(torch.device("cpu") if wanted.device is None else wanted.device)
        return stack.pop_all()


@contextmanager
def with_function_state(wanted: Any) -> Iterator[None]:
    """Call ``__torch_function__`` inside where it was called when this was ``function_state()``."""
    found = function_state()
    set_function_state(wanted)
    try:
        yield
    finally:
        set_function_state(found)


def autocast_depth() -> int:
    """How many contexts of autocast are entered on this thread. As the last one is left, casts that are cached are let go."""
    _enter_autocast()
    return _leave_autocast()


def restore_autocast(found: Modes, depth: int) -> None:
    """Put a thread's autocast back to what was found, where a function set it by hand and was left before it set it back."""
    for kind, enabled, dtype in found.autocast:
        if _autocasts(kind) != enabled:
            torch.set_autocast_enabled(kind, enabled)
        if _autocast_dtype(kind) != dtype:
            torch.set_autocast_dtype(kind, dtype)
    if _autocast_cache() != found.cache:
        torch.set_autocast_cache_enabled(found.cache)
    now = autocast_depth()
    while now < depth:
        now = _enter_autocast()
    while now > depth:
        now = _leave_autocast()
        if not now:
            torch.clear_autocast_cache()


def process_wide() -> ProcessWide:
    """The default dtype, and whether algorithms have to be deterministic and only warn if not, of all threads."""
    return _default_dtype(), (deterministic_algorithms(), deterministic_algorithms_warn_only())


def set_process_wide(wanted: ProcessWide) -> None:
    """Set them for all threads, where they differ."""
    dtype, deterministic = wanted
    if _default_dtype() != dtype:
        torch.set_default_dtype(dtype)
    if (deterministic_algorithms(), deterministic_algorithms_warn_only()) != deterministic:
        set_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def restore_process_wide(found: ProcessWide, ours: tuple[ProcessWide, ...] | None = None) -> None:
    """Set both back to what was found. With ``ours``, only from a value that is among them: others are another thread's."""
    if ours is None:
        set_process_wide(found)
    else:
        (dtype, flags), (dtypes, all_flags) = process_wide(), zip(*ours, strict=True)
        set_process_wide((found[0] if dtype in dtypes else dtype, found[1] if flags in all_flags else flags))
