"""The state of the process that a run may change: seeded before it, and put back after it."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch


def _device_module() -> Any:
    """The module of the accelerator in use, if there is one that was initialised."""
    kind = torch.accelerator.current_accelerator()
    module = torch.get_device_module(kind) if kind is not None and torch.accelerator.is_available() else None
    return module if module is not None and getattr(module, "is_initialized", bool)() else None


def seed_all(seed: int) -> None:
    """Seed torch, its devices, Python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def random_streams() -> dict[str, str]:
    """Where each random number stream stands, as a digest: torch, Python, numpy and each device."""
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "Python": repr(random.getstate()).encode(),
        "numpy": b"".join(np.asarray(part).tobytes() for part in tuple(np.random.get_state())[1:]),
    }
    if (module := _device_module()) is not None:
        states |= {f"device {i}": state.numpy().tobytes() for i, state in enumerate(module.get_rng_state_all())}
    return {name: hashlib.blake2b(state, digest_size=8).hexdigest() for name, state in states.items()}


@contextmanager
def preserved() -> Iterator[None]:
    """Put back random numbers, grad mode, default dtype, deterministic algorithms and filters of warnings."""
    module = _device_module()
    devices = module.get_rng_state_all() if module is not None else None
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        try:
            yield
        finally:
            torch.set_rng_state(streams[0])
            random.setstate(streams[1])
            np.random.set_state(streams[2])
            if devices is not None:
                module.set_rng_state_all(devices)
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
