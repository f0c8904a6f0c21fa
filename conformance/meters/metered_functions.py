"""Meters around the functions of regions.

Each function is wrapped once, so that two calls with it give the implementation the same object. A module is wrapped in a
module, so what an implementation does by type still happens; a partial, a method or a builtin arrives as a function.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.meters.meter import Meter


class MeteredModule(torch.nn.Module):
    """Calls what meters made of a module, which is its only child, and is in the mode that the module is in."""

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
    """The checkpoint, with meters around the functions that it is given, the same one whenever a function comes again."""
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
