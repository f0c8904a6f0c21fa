"""Whether torch can use a device here, and what is missing if it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def require(device: str) -> None:
    """Raise ValueError for a device on which no tensor can be made, with what is missing and, for CUDA, what to do."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError by builds for another device
        told = f"torch cannot use it here: {str(error).splitlines()[0]}"
        raise ValueError(". ".join(filter(None, [told.rstrip("."), _missing(device)]))) from error


def require_cuda(device: str, why: str) -> None:
    """Raise ValueError unless torch can use this CUDA device here; ``why`` says what it is needed for."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}: {str(error).splitlines()[0]}") from error
    if kind != "cuda":
        raise ValueError(f"device is {device!r}; it must be of type cuda: {why}")
    try:
        require(device)
    except ValueError as error:
        raise ValueError(f"device is {device!r}, and {error}") from error


def _missing(device: str) -> str:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        return ""
    if kind != "cuda":
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"This build of torch, {torch.__version__}, has no CUDA: install one that has"
    if not torch.cuda.is_available():
        return "No GPU with a driver for it is found: see nvidia-smi and CUDA_VISIBLE_DEVICES"
    return f"There are {torch.cuda.device_count()} of this type, counted from 0"


@contextmanager
def no_seeds_for_absent_devices() -> Iterator[None]:
    """Inside, ``torch.manual_seed`` ignores accelerators that are not available, as their documentation says it does.

    torch queues such a seed with the stack of its caller. Programs seed before they draw, so a tenth of a run's time went into
    stacks that nothing reads.
    """
    absent: list[Any] = [module for module in (torch.cuda, torch.xpu, torch.mtia) if not module.is_available()]
    before = [module.manual_seed_all for module in absent]
    for module in absent:
        module.manual_seed_all = int  # what is no number is an error here, too
    try:
        yield
    finally:
        for module, own in zip(absent, before, strict=True):
            module.manual_seed_all = own
