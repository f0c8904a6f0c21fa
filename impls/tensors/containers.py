"""Containers that tensors are passed in: flattened one level at a time, made anew, and kept while they hold what they held."""

from __future__ import annotations

import dataclasses
import operator
from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

from impls.torch_private import TreeSpec, tree_flatten, tree_is_leaf, tree_unflatten

_BUILTIN = frozenset({list, dict, OrderedDict, defaultdict, deque})
GONE = object()


class Parts(NamedTuple):
    """A container as its children, and what makes one of these again."""

    children: list[Any]
    form: Any


class Fields(NamedTuple):
    """A dataclass, and the names of what an instance holds."""

    kind: type
    names: tuple[str, ...]


class Container:
    """Stands for a container. ``original`` is that itself for as long as it is known to hold what it held, and then GONE.

    Only containers of Python's own, tuples and dataclasses are: what a run does to others could not be undone.
    """

    __slots__ = ("children", "form", "original")

    def __init__(self, value: Any, children: list[Any], form: Any) -> None:
        self.children, self.form = children, form
        self.original = value if type(value) in _BUILTIN or isinstance(value, tuple) or isinstance(form, Fields) else GONE

    def original_with(self, children: list[Any]) -> Any:
        """The container itself if it has these children, GONE otherwise."""
        value = self.original  # asked for once, as another thread may let go of it
        return value if value is not GONE and self._consists_of(value, children) else GONE

    def keep_if_unchanged(self, children: list[Any]) -> bool:
        """Let go of the container unless it has these children. Whether it is still here."""
        self.original = self.original_with(children)
        return self.original is not GONE

    def _consists_of(self, value: Any, children: list[Any]) -> bool:
        now = flatten_once(value)
        return now is not None and _same_form(now.form, self.form) and _identical(now.children, children)

    def refill(self, value: Any, children: list[Any]) -> None:
        """Give the container ``value`` these children again, although it may have been let go meanwhile."""
        if self._consists_of(value, children):
            return
        whole = unflatten(children, self.form)
        if isinstance(self.form, Fields):
            vars(value).clear()
            vars(value).update(vars(whole))
        elif isinstance(value, list):
            value[:] = whole
        elif not isinstance(value, tuple):
            value.clear()
            value.update(whole) if isinstance(value, dict) else value.extend(whole)


def flatten_once(value: Any) -> Parts | None:
    """What a container consists of; None if it is none."""
    kind = type(value)
    if kind is list or kind is tuple:
        return Parts(list(value), kind)
    if kind is dict:
        return Parts([*value.values()], tuple(value))
    if not tree_is_leaf(value):
        own = id(value)  # the function is kept until the garbage collector runs: so it is to hold no tensor
        return Parts(*tree_flatten(value, lambda node: id(node) != own))
    if _is_record(value):
        fields = vars(value)
        return Parts([*fields.values()], Fields(kind, tuple(fields)))
    return None


def _is_record(value: Any) -> bool:
    """Whether an object is all in its fields, so that it can be rebuilt from them exactly."""
    bases = type(value).__mro__[:-1]
    return bool(bases) and all(dataclasses.is_dataclass(base) and "__slots__" not in vars(base) for base in bases)


def unflatten(children: list[Any], form: Any) -> Any:
    """A container anew; a dataclass without its constructor."""
    if isinstance(form, TreeSpec):
        return tree_unflatten(children, form)
    if isinstance(form, Fields):
        record: Any = object.__new__(form.kind)
        vars(record).update(zip(form.names, children, strict=True))
        return record
    return form(children) if isinstance(form, type) else dict(zip(form, children, strict=True))


def _same_form(one: Any, other: Any) -> bool:
    """Whether containers are put together in the same way; keys of a dict, which may be tensors, are not compared by value."""
    if type(one) is tuple and type(other) is tuple:
        return _identical([*one], [*other])
    return bool(one == other)


def _identical(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
