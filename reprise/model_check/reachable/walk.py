"""Tensors, containers and random generators that a function or a model reaches, without the model's parameters and buffers.

They are found in closures, in globals that a function names (other than functions and what else can be called, modules aside),
in attributes of modules and of other objects, in modules that are not the model's, and inside lists, dicts and sets. Other
values are not looked at, nor is anything deeper than ``DEPTH`` or beyond the first ``WIDTH`` elements. A partial and a method
are no level of their own: what they hold is as deep as they are.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from reprise.model_check.regions import RegionLog

DEPTH = 4
WIDTH = 64  # elements of a container that are looked at
_CONTAINERS = (list, dict, set, deque)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LEFT_OUT = (ModuleType, type, str, int, float, RegionLog)  # the last is this package's own, reached through a wrapped forward
_OF_MODULES = frozenset(vars(nn.Module()))  # fields that every module has


@dataclass(frozen=True)
class Known:
    """The identities of parameters and buffers, which are compared elsewhere, and the names of modules."""

    tensors: frozenset[int]
    names: Mapping[int, str]

    @classmethod
    def of(cls, model: nn.Module) -> Known:
        """Those of a model."""
        tensors = frozenset(id(one) for one in (*model.parameters(), *model.buffers()))
        return cls(tensors, {id(module): name or "the model" for name, module in model.named_modules()})


def named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Arguments with their names."""
    return [*((f"argument {number}", value) for number, value in enumerate(args)), *kwargs.items()]


class Walk:
    """What is reached, by the path to it.

    With ``is_alike``, paths are the same for another model that was built in the same way: no elements of sets are looked at,
    whose order is not, and no key of a dict is shown unless it is text or a number.
    """

    def __init__(self, known: Known, *, is_alike: bool = False) -> None:
        self.known, self.names, self.is_alike = {*known.tensors}, known.names, is_alike
        self.found: dict[str, Any] = {}
        self.containers: dict[str, str] = {}  # that elements are in, by their paths
        self.functions: Counter[str] = Counter()  # those that were looked at, by name

    def value(self, value: Any, path: str, depth: int) -> None:
        """Record a value, and what is reached from it."""
        if depth > DEPTH or id(value) in self.known or isinstance(value, _LEFT_OUT) or is_lazy(value):
            return
        self.known.add(id(value))
        if isinstance(value, (torch.Tensor, *GENERATORS)):
            self._note(value, path)
        elif isinstance(value, _CONTAINERS):
            self._note(value, path)
            self._elements(value, path, depth)
        elif isinstance(value, tuple):
            self._elements(value, path, depth)
        elif isinstance(value, nn.Module):
            self._module(value, path, depth)
        elif isinstance(value, functools.partial):
            self.value(value.func, path, depth)
            for name, one in named(value.args, value.keywords):
                self.value(one, f"{path}({name})", depth)
        elif isinstance(value, MethodType):
            self.value(value.__self__, path, depth)
            self.value(value.__func__, path, depth)
        elif isinstance(value, FunctionType):
            self._function(value, depth)
        else:
            for name, one in list(getattr(value, "__dict__", {}).items())[:WIDTH]:
                self.value(one, f"{path}.{name}", depth + 1)

    def _note(self, value: Any, path: str) -> None:
        """Put it down under its path, or with a number if another one has that, as globals of two modules may have."""
        paths = itertools.chain([path], (f"{path} ({number})" for number in itertools.count(2)))
        self.found[next(one for one in paths if one not in self.found)] = value

    def _elements(self, values: Any, path: str, depth: int) -> None:
        if self.is_alike and isinstance(values, set):
            return
        pairs = values.items() if isinstance(values, dict) else enumerate(values)
        for number, (key, one) in enumerate(list(pairs)[:WIDTH]):
            shown = key if not self.is_alike or isinstance(key, str | int | float) else number
            self.containers[f"{path}[{shown!r}]"] = path
            self.value(one, f"{path}[{shown!r}]", depth + 1)

    def _module(self, module: nn.Module, path: str, depth: int) -> None:
        for inside, part in module.named_modules():
            self.known.add(id(part))
            name = self.names.get(id(part)) or (f"{path}.{inside}" if inside else path)
            kinds = (
                ("_parameters",) if id(part) in self.names else ("_parameters", "_buffers")
            )  # buffers are compared elsewhere
            registered = [one for kind in kinds for one in (vars(part).get(kind) or {}).items()]  # None in scripted modules
            own = {key: one for key, one in vars(part).items() if key not in _OF_MODULES}
            for key, one in {**dict(registered), **own}.items():
                self.value(one, f"{name}.{key}", depth + 1)
            forward = getattr(type(part), "forward", None)  # a scripted module's class has none
            forward = getattr(forward, "__wrapped__", forward)
            if isinstance(forward, FunctionType):
                self.value(forward, name, depth + 1)

    def _function(self, function: Callable[..., Any], depth: int) -> None:
        """Closure and globals; of globals that can be called, modules alone, as a function names globals of its own."""
        assert isinstance(function, FunctionType)
        name = function.__qualname__
        self.functions[name] += 1
        name = name if self.functions[name] == 1 else f"{name} ({self.functions[name]})"  # closures of one function
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self.value(cell.cell_contents, f"closure variable {variable} of {name}", depth + 1)
            except ValueError:  # not bound yet
                continue
        for variable in function.__code__.co_names:
            one = function.__globals__.get(variable)
            if isinstance(one, nn.Module) or not callable(one):
                self.value(one, f"global {variable}", depth + 1)
