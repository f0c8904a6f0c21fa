"""Pinned memory for the simulated second device, for which torch has no allocator of pinned memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch


def _pageable(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return factory(*args, **kwargs)

    return made


@contextmanager
def pinnable(device: str) -> Iterator[None]:
    """Inside, memory may be asked for as pinned; on a machine without CUDA it is pageable, and copies are still right."""
    with ExitStack() as stack:
        if torch.device(device).type != "cuda":
            for name in ("empty", "empty_like", "empty_strided"):
                stack.enter_context(mock.patch.object(torch, name, _pageable(getattr(torch, name))))
        yield
