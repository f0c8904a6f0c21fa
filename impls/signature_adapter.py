"""Adapters for checkpoints with another signature, to be called as ``checkpoint(function, *args, **kwargs)``.

A checkpoint that takes something else before the function needs no adapter: ``functools.partial(yours, something)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class _Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def decorator(decorate: Callable[..., Any]) -> Callable[..., Any]:
    """A checkpoint made of a decorator: ``decorate(function)`` is the checkpointed function."""

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return decorate(function)(*args, **kwargs)

    return checkpoint


def wrapper_of_modules(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """A checkpoint made of a wrapper of modules: ``wrap(module)`` is the checkpointed module; a function becomes a module."""
    return decorator(lambda function: wrap(function if isinstance(function, nn.Module) else _Function(function)))
