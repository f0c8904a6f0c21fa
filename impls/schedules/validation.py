"""The checks that are made of arguments in several places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def require_int(name: str, value: int, *, least: int, most: int | None = None) -> None:
    """Raise TypeError or ValueError, naming the argument, unless ``value`` is an int between ``least`` and ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {value}; it must be at least {least}" + ("" if most is None else f" and at most {most}"))


def require_functions(functions: Any, name: str = "functions") -> tuple[Callable[[Any], Any], ...]:
    """The stages as a tuple. TypeError for what is no nn.Sequential, nn.ModuleList, list or tuple of callables."""
    if not isinstance(functions, nn.Sequential | nn.ModuleList | list | tuple):
        kind = type(functions).__name__
        raise TypeError(f"{name} is of type {kind}; it must be an nn.Sequential, nn.ModuleList, list or tuple")
    chain = tuple(functions)  # children() would leave out a module's second occurrence
    for index, function in enumerate(chain):
        if not callable(function):
            raise TypeError(f"{name}[{index}] is {function!r}; it must be callable")
    return chain
