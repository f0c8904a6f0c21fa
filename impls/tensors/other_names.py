"""What a function finds besides its arguments: in attributes, closures, defaults and globals.

What is found there is kept alive by nothing here: containers are names and positions, which are followed anew each time, and
tensors are weak references.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

GONE = object()
LIMIT = 300  # references that a search follows, in a part of a millisecond: each region of a chain may search in vain
ITEMS = 100  # of a container that are looked at

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter})
_ATTRIBUTES = {
    MethodType: ("__self__", "__func__"),
    partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
}


class OtherName(NamedTuple):
    """The way from ``roots``, such as a function, to an object of class ``kind``."""

    roots: tuple[Any, ...]
    path: tuple[Any, ...]
    kind: type

    def find(self) -> Any:
        """What is there by now, which may be another object of that class; GONE if there is none."""
        value: Any = self.roots
        for key in self.path:
            value = next((found for each, found in _leads_to(value) if each == key), None)
        return value if type(value) is self.kind else GONE


class Itself(NamedTuple):
    """Leads to an object that is kept."""

    value: Any

    def find(self) -> Any:
        return self.value


def find_other_name(roots: tuple[Any, ...], wanted: Any) -> OtherName | None:
    """A shortest way from the roots to an object; None if there is none among the first ``LIMIT`` references."""
    seen: set[int] = set()
    left = LIMIT
    unread: deque[tuple[tuple[Any, ...], Any]] = deque([((), roots)])
    while unread:
        path, value = unread.popleft()
        for key, found in _leads_to(value):
            left -= 1
            if left < 0:
                return None
            if found is wanted:
                return OtherName(roots, (*path, key), type(wanted))
            if type(found) not in _ATOMS and id(found) not in seen:
                seen.add(id(found))
                unread.append(((*path, key), found))
    return None


class OutsideTensors:
    """The tensors that a function may read besides its arguments, at their versions: those of modules, and others near it."""

    def __init__(self, function: Any) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        seen: set[int] = set()
        left = LIMIT
        unread: deque[Any] = deque([(function,)])
        while unread and left > 0:
            for _, found in islice(_leads_to(unread.popleft()), left):
                left -= 1
                if isinstance(found, torch.Tensor):
                    self._add(found)
                elif type(found) not in _ATOMS and id(found) not in seen:
                    seen.add(id(found))
                    unread.append(found)
                    if isinstance(found, torch.nn.Module):
                        for one in (*found.parameters(), *found.buffers()):
                            self._add(one)

    def _add(self, tensor: torch.Tensor) -> None:
        if not torch.nn.parameter.is_lazy(tensor) and not tensor.is_inference():
            self._known[id(tensor)] = weakref.ref(tensor), tensor._version

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of them, or a view of one, and was not changed in place since."""
        for one in (tensor, tensor._base):
            reference, version = self._known.get(id(one), (None, 0))
            if one is not None and reference is not None and reference() is one and one._version == version:
                return True
        return False


def _leads_to(value: Any) -> Iterator[tuple[Any, Any]]:
    """What an object refers to, by keys that find it there again."""
    kind = type(value)
    if iterates := next((base for base in (list, tuple, deque) if issubclass(kind, base)), None):
        yield from enumerate([*islice(iterates.__iter__(value), ITEMS)])  # past what a subclass has to say about that
    elif issubclass(kind, dict):
        yield from ((key, one) for key, one in [*islice(dict.items(value), ITEMS)] if type(key) in (str, int))
    elif kind in _ATTRIBUTES:
        yield from ((name, getattr(value, name)) for name in _ATTRIBUTES[kind])
    elif kind is FunctionType:
        yield from _function_leads_to(value)
    elif issubclass(kind, type):
        if not _is_of_torch(value):
            yield from [*vars(value).items()]
            yield "__bases__", value.__bases__
    elif not issubclass(kind, ModuleType | torch.Tensor):
        yield from _attributes(value, kind)


def _function_leads_to(function: FunctionType) -> Iterator[tuple[Any, Any]]:
    if _is_of_torch(function):
        return
    for index, cell in enumerate(function.__closure__ or ()):
        with suppress(ValueError):  # empty so far
            yield index, cell.cell_contents
    yield "__defaults__", function.__defaults__
    yield "__kwdefaults__", function.__kwdefaults__
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        found = function.__globals__[name]
        if not isinstance(found, ModuleType):
            yield ("global", name), found
        elif not _is_of_torch(found):
            yield from ((("global", name, one), vars(found)[one]) for one in sorted(names & vars(found).keys()))
    yield "__dict__", vars(function)


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function may read, or one that is written inside it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _attributes(value: Any, kind: type) -> Iterator[tuple[Any, Any]]:
    """What is in the ``__dict__`` and slots of an object, past what its class may have to say about that; and the class."""
    with suppress(AttributeError):
        yield from [*object.__getattribute__(value, "__dict__").items()]
    for base in kind.__mro__:
        for name, member in [*vars(base).items()] if "__slots__" in vars(base) else ():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):  # not set
                    yield ("slot", name), member.__get__(value)
    yield "__class__", kind


def _is_of_torch(value: Any) -> bool:
    """Whether it is part of torch, which has none of a user's containers."""
    if isinstance(value, type):
        name = vars(value).get("__module__", "builtins")  # not asked of the class, which may answer by a property
    else:
        name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return str(name).partition(".")[0] in ("torch", "builtins")
