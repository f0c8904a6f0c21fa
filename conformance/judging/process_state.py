"""Restores what a program changes in the process, so that it does not decide the verdict on the next program."""

from __future__ import annotations

import gc
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.overrides import _pop_mode as _pop_function_mode
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

_LOGGERS = logging.getLogger("torch.autograd.graph"), logging.getLogger("impls.graph")


def _flags(kinds: frozenset[str]) -> tuple[Any, ...]:
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    grad, dtype, cache = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_cache_enabled()
    return grad, dtype, cache, autocast, deterministic


def _set(flags: tuple[Any, ...]) -> None:
    grad, dtype, cache, autocast, deterministic = flags
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    torch.set_autocast_cache_enabled(cache)
    torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
    for kind, enabled, dtype in autocast:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _settings() -> tuple[Any, ...]:
    """Settings of the whole process, torch's and Python's."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return threads, precision, random.getstate(), gc.get_threshold(), sys.getprofile(), tuple(warnings.filters)


def _put_back(settings: tuple[Any, ...]) -> None:
    threads, precision, state, threshold, profile, filters = settings
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    random.setstate(state)
    gc.set_threshold(*threshold)
    sys.setprofile(profile)
    cast(list[Any], warnings.filters)[:] = filters


def _disable_hooks(message: str | None) -> None:
    if message is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(message)


def _forget_compiled() -> None:
    """Empty the compiler's caches, because what they hold affects how it compiles the next functions."""
    if "torch._dynamo" in sys.modules:  # importing it takes seconds
        torch._dynamo.reset()


@contextmanager
def isolated(device: str) -> Iterator[None]:
    """Put back the hooks for saved tensors, modes, grad mode, autocast, default dtype and determinism of this thread.

    Also put back are the number of threads, matmul precision, warnings filters, thresholds of the collector, the profiling
    function, Python's random numbers, the levels of the loggers of backward, which a program that ends in an error leaves
    changed, and the recursion limit, by which every later program would fail.

    Hooks and modes that were left on are taken off, and the compiler's caches are empty at the beginning. Not covered: hooks
    and modes that were on before and have been taken off, and generators, which every program seeds for itself.
    """
    _forget_compiled()
    kinds = frozenset(kind for kind in ("cpu", torch.device(device).type) if torch.amp.is_autocast_available(kind))
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    disabled = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    modes = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    flags, levels = _flags(kinds), [log.level for log in _LOGGERS]
    recursion_limit, settings = sys.getrecursionlimit(), _settings()
    try:
        yield
    finally:
        sys.setrecursionlimit(recursion_limit)  # first, as what follows calls functions
        if _settings() != settings:
            _put_back(settings)
        for log, level in zip(_LOGGERS, levels, strict=True):
            if log.level != level:  # each call empties a cache of all loggers
                log.setLevel(level)
        if torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() != disabled:
            _disable_hooks(disabled)
        while torch._C._autograd._top_saved_tensors_default_hooks(True) not in (hooks, None):
            torch._C._autograd._pop_saved_tensors_default_hooks()
        while torch._C._len_torch_dispatch_stack() > modes[0]:
            _pop_dispatch_mode()
        while torch._C._len_torch_function_stack() > modes[1]:
            _pop_function_mode()
        if _flags(kinds) != flags:
            _set(flags)
