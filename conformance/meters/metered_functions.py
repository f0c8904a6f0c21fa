"""Meters around the functions of regions.

Each function is wrapped once, so that the implementation gets the same object in each call with it. A module is wrapped in a
module, so that an implementation can still treat it as one; a partial, a method or a builtin becomes a function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.meters.meter import Meter


class MeteredModule(torch.nn.Module):
    """Calls a module, its only child, through meters, and shares its training mode."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.__wrapped__, self.call = module, module, call

    @property
    def training(self) -> bool:
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_modules" in vars(self):  # else it is being made
            self.module.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def metered(checkpoint: Callable[..., Any], meters: Sequence[Meter]) -> Callable[..., Any]:
    """The checkpoint, with meters around the functions that it is given; each function is wrapped only once."""
    known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def through(function: Any = None, *args: Any, **kwargs: Any) -> Any:
        if function is None and not args:
            decorate = checkpoint(**kwargs)
            return lambda decorated: decorate(around(decorated))
        return checkpoint(around(function) if callable(function) else function, *args, **kwargs)

    def around(function: Any) -> Any:
        compiling = torch.compiler.is_compiling()  # what is known here is nothing that a compiler could see through
        made = None if compiling else known.get(id(function))  # it holds the function, so the identity is taken
        if made is None:
            made = function
            for meter in meters:
                made = meter.around(made)
            if isinstance(function, torch.nn.Module):
                made = MeteredModule(function, made)
            if not compiling:
                known[id(function)] = made
        return made

    return through
