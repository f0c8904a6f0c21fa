"""Tensors and containers that a region's function reaches, other than tensors it is passed, parameters and buffers.

They are found in closures, in globals that a function names (other than functions and what else can be called, modules aside),
in attributes of modules and of other objects, and inside lists, dicts and sets. Other values are not looked at, nor is anything
deeper than ``DEPTH`` or beyond the first ``WIDTH`` elements. A partial and a method are no level of their own: what they hold
is as deep as they are.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from reprise.model_check.comparison import digest
from reprise.model_check.regions import RegionLog, RegionRun

DEPTH = 4
WIDTH = 64  # elements of a container that are looked at
_CONTAINERS = (list, dict, set, deque)
_OF_MODULES = frozenset(vars(nn.Module()))  # fields that every module has


@dataclass(frozen=True)
class State:
    """A tensor or container at one time: its identity, without keeping it alive, and a digest of its values or its length."""

    identity: weakref.ref[torch.Tensor] | int
    content: str
    is_tensor: bool
    memory: tuple[StorageWeakRef, int] | None = None  # the storage of a dense tensor, and its offset

    def is_same_object(self, other: State) -> bool:
        """Whether both are of the same object, which is still there if it is a tensor."""
        one, another = self.identity, other.identity
        if isinstance(one, weakref.ref) and isinstance(another, weakref.ref):
            return one() is not None and one() is another()
        return one == another


Snapshot = Mapping[str, State]


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


def snapshot(known: Known, one: RegionRun) -> Snapshot:
    """What a region's function reaches now, by the path to it."""
    walk = _Walk(known)
    walk.value(one.function, one.region.name, 0)
    for name, value in _named(*one.arguments):
        if not isinstance(value, torch.Tensor):
            walk.value(value, f"{one.region.name}({name})", 0)
    return {path: _state(value) for path, value in walk.found.items()}


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [*((f"argument {number}", value) for number, value in enumerate(args)), *kwargs.items()]


def _state(value: Any) -> State:
    if isinstance(value, torch.Tensor):
        is_dense = value.layout == torch.strided
        memory = (StorageWeakRef(value.untyped_storage()), int(value.storage_offset())) if is_dense else None
        return State(weakref.ref(value), digest(value), True, memory)
    return State(id(value), f"{type(value).__name__} of {len(value)}", False)


def filled_again(forward: tuple[Snapshot, Snapshot], again: tuple[Snapshot, Snapshot], *, finished: bool) -> Iterator[str]:
    """What forward wrote and the recomputation wrote with another value, or found already there and left alone.

    Only a recomputation that ``finished`` shows that it left something alone: others stop early.
    """
    for path, written in forward[1].items():
        before = forward[0].get(path)
        if before is not None and before.content == written.content:
            continue
        found, left = again[0].get(path), again[1].get(path)
        if found is None or left is None:
            continue
        is_left = finished and left.is_tensor and left.content == found.content and left.is_same_object(found)
        if is_left or left.content not in (found.content, written.content):
            yield path


def changed_between(forward: tuple[Snapshot, Snapshot], again: tuple[Snapshot, Snapshot]) -> Iterator[str]:
    """Tensors whose values are not those that forward left."""
    for path, left in forward[1].items():
        found = again[0].get(path)
        if left.is_tensor and found is not None and found.content != left.content:
            yield path


class _Walk:
    def __init__(self, known: Known) -> None:
        self.known, self.names = {*known.tensors}, known.names
        self.found: dict[str, Any] = {}

    def value(self, value: Any, path: str, depth: int) -> None:
        """Record a value, and what is reached from it."""
        if depth > DEPTH or id(value) in self.known or isinstance(value, ModuleType | type | str | int | float):
            return
        if isinstance(value, RegionLog):  # this package's own, reached through a wrapped forward
            return
        self.known.add(id(value))
        if isinstance(value, torch.Tensor):
            self.found[path] = value
        elif isinstance(value, _CONTAINERS):
            self.found[path] = value
            self._elements(value, path, depth)
        elif isinstance(value, tuple):
            self._elements(value, path, depth)
        elif isinstance(value, nn.Module):
            self._module(value, depth)
        elif isinstance(value, functools.partial):
            self.value(value.func, path, depth)
            for name, one in _named(value.args, value.keywords):
                self.value(one, f"{path}({name})", depth)
        elif isinstance(value, MethodType):
            self.value(value.__self__, path, depth)
            self.value(value.__func__, path, depth)
        elif isinstance(value, FunctionType):
            self._function(value, depth)
        else:
            for name, one in list(getattr(value, "__dict__", {}).items())[:WIDTH]:
                self.value(one, f"{path}.{name}", depth + 1)

    def _elements(self, values: Any, path: str, depth: int) -> None:
        pairs = values.items() if isinstance(values, dict) else enumerate(values)
        for key, one in list(pairs)[:WIDTH]:
            self.value(one, f"{path}[{key!r}]", depth + 1)

    def _module(self, module: nn.Module, depth: int) -> None:
        for part in module.modules():
            self.known.add(id(part))
            name = self.names.get(id(part), type(part).__name__)
            for key, one in list(vars(part).items()):
                if key not in _OF_MODULES:
                    self.value(one, f"{name}.{key}", depth + 1)
            forward = getattr(type(part), "forward", None)  # a scripted module's class has none
            forward = getattr(forward, "__wrapped__", forward)
            if isinstance(forward, FunctionType):
                self.value(forward, name, depth + 1)

    def _function(self, function: Callable[..., Any], depth: int) -> None:
        """Closure and globals; of globals that can be called, modules alone, as a function names globals of its own."""
        assert isinstance(function, FunctionType)
        name = function.__qualname__
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self.value(cell.cell_contents, f"closure variable {variable} of {name}", depth + 1)
            except ValueError:  # not bound yet
                continue
        for variable in function.__code__.co_names:
            one = function.__globals__.get(variable)
            if isinstance(one, nn.Module) or not callable(one):
                self.value(one, f"global {variable}", depth + 1)
