"""Containers that tensors are passed in: flattened one level at a time, made anew, and kept while they hold what they held."""

from __future__ import annotations

import copyreg
import dataclasses
import operator
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import torch

from impls.tensors.other_names import GONE as GONE
from impls.tensors.other_names import Itself, OtherName
from impls.torch_private import TreeSpec, tree_flatten, tree_is_leaf, tree_unflatten

_BUILTIN = frozenset({list, dict, OrderedDict, defaultdict, deque})
_SIMPLE = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not set for classes such as dict, which keep something beside attributes


class Parts(NamedTuple):
    """A container as its children, and what makes one of these again."""

    children: list[Any]
    form: Any


class Fields(NamedTuple):
    """A class whose objects are all in their attributes, and the names of those that one has, in slots or not."""

    kind: type
    names: tuple[str, ...]


class Items(NamedTuple):
    """A named tuple or ``OrderedDict``: how many items it has or their keys, and the names of its attributes besides."""

    kind: type
    keys: int | tuple[Any, ...]
    names: tuple[str, ...]


class Container:
    """Stands for a container. ``original`` is that itself for as long as it is known to hold what it held, and then GONE.

    Only containers of Python's own, tuples, and objects that are all in their attributes are: what a run does to others could
    not be undone.
    ``other_name`` leads to one that the function has changed, and may know by its identity or another name.
    """

    __slots__ = ("children", "form", "original", "other_name")

    def __init__(self, value: Any, children: list[Any], form: Any) -> None:
        self.children, self.form = children, form
        self.original = value if type(value) in _BUILTIN or isinstance(value, tuple) or isinstance(form, Fields) else GONE
        self.other_name: OtherName | Itself | None = None

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
            _set_state(value, self.form.kind, _state(whole))
        elif isinstance(value, list):
            value[:] = whole
        elif not isinstance(value, tuple):
            value.clear()
            value.update(whole) if isinstance(value, dict) else value.extend(whole)
        if isinstance(self.form, Items):
            _set_attributes(value, getattr(whole, "__dict__", {}))

    def keep_itself(self, value: Any, atoms: frozenset[type], others: list[Any]) -> bool:
        """Keep a container that was changed, if it holds only ``atoms`` and what is kept anyway. Returns whether it is kept."""
        now, known = flatten_once(value), {id(one) for one in others}
        harmless = (
            now is not None
            and (isinstance(now.form, Fields) or type(value) in (list, dict, deque))
            and (type(value) is not dict or all(type(key) in atoms for key in value))
            and all(type(one) in atoms or id(one) in known for one in now.children)
        )
        self.other_name = Itself(value) if harmless else None
        return harmless


class Contents:
    """What a container holds, with a random generator's methods, so that a ``Restoration`` sets it and puts it back."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get_state(self) -> Any:
        return flatten_once(self.value)

    def set_state(self, state: Any) -> None:
        Container(self.value, *state).refill(self.value, state.children)


class PassedContainer:
    """A container that a function is passed, and what it held then. Its tensors may be freed meanwhile."""

    __slots__ = ("children", "container", "value")

    def __init__(self, container: Container, value: Any, children: list[Any]) -> None:
        self.container, self.value = container, value
        self.children = [weakref.ref(one) if isinstance(one, torch.Tensor) else one for one in children]

    def has_changed(self) -> bool:
        """Whether it holds something else by now."""
        if any(type(one) is weakref.ref and one() is None for one in self.children):
            return True
        return not self.container._consists_of(self.value, [_dereference(one) for one in self.children])


def _dereference(one: Any) -> Any:
    return one() if type(one) is weakref.ref else one


def flatten_once(value: Any) -> Parts | None:
    """What a container consists of; None if it is none."""
    kind = type(value)
    if kind is list or kind is tuple:
        return Parts(list(value), kind)
    if kind is dict:
        return Parts([*value.values()], tuple(value))
    if kind is OrderedDict or _is_named_tuple(kind):
        keys, items = (tuple(value), value.values()) if kind is OrderedDict else (len(value), value)
        others = getattr(value, "__dict__", {})
        return Parts([*items, *others.values()], Items(kind, keys, tuple(others)))
    registered = not tree_is_leaf(value)
    if _is_record(kind) and (dataclasses.is_dataclass(kind) or registered):
        fields = _state(value)
        if not registered or _has_it_all(value, fields):
            return Parts([*fields.values()], Fields(kind, tuple(fields)))
    if registered:
        own = id(value)  # the function is kept until the garbage collector runs: so it is to hold no tensor
        return Parts(*tree_flatten(value, lambda node: id(node) != own))
    return None


def _is_named_tuple(kind: type) -> bool:
    """Whether it is a class that ``namedtuple`` or ``NamedTuple`` made, or a subclass; those of C, as torch has, are not."""
    return bool(issubclass(kind, tuple) and kind.__flags__ & _IN_PYTHON and hasattr(kind, "_fields"))


def _is_record(kind: type) -> bool:
    """Whether objects of a class are all in their attributes, so that they can be rebuilt from these exactly.

    Its bases may be any that are written in Python, such as a mixin, Protocol or Generic, but for those that say how an
    object is made, such as Enum, or what it does at its end: a second one would do that, too. A module is what it is, and no
    container.
    """
    return not issubclass(kind, torch.nn.Module) and all(map(_adds_attributes, kind.__mro__[:-1]))


def _has_it_all(value: Any, fields: dict[str, Any]) -> bool:
    """Whether what pytree finds in an object is all in its attributes, or in containers there.

    A class may be registered with a function that finds it in other objects, which are no containers and so stay as they are.
    What such a function makes need not be there, if the attributes hold no such objects.
    """
    children, known = tree_flatten(value, lambda node: node is not value)[0], {id(one) for one in fields.values()}
    if all(id(one) in known for one in children):
        return True
    found, its = tree_flatten(children)[0], tree_flatten([*fields.values()])[0]
    known = {id(one) for one in its}
    return all(id(one) in known or type(one) in _SIMPLE for one in found) or all(
        isinstance(one, torch.Tensor) or type(one) in _SIMPLE for one in its
    )


def _adds_attributes(base: type) -> bool:
    """Whether a class gives its objects attributes alone."""
    own = vars(base)
    made_alike = "__new__" not in own or dataclasses.is_dataclass(base)
    return bool(base.__flags__ & _IN_PYTHON) and made_alike and "__del__" not in own


def _state(record: Any) -> dict[str, Any]:
    """The attributes of an object by name: those in slots, as far as they are set, and the others."""
    slots = [name for name in _slots(type(record)) if hasattr(record, name)]
    found = getattr(record, "__dict__", {})
    return {**{name: getattr(record, name) for name in slots}, **found} if slots else found


def _set_state(record: Any, kind: type, wanted: dict[str, Any]) -> None:
    """Give an object these attributes and no others, whatever its class has to say about that."""
    slots = _slots(kind)
    for name in slots:
        if name in wanted:
            object.__setattr__(record, name, wanted[name])
        elif hasattr(record, name):
            object.__delattr__(record, name)
    _set_attributes(record, {name: value for name, value in wanted.items() if name not in slots} if slots else {**wanted})


def _set_attributes(value: Any, wanted: dict[str, Any]) -> None:
    """Give an object these attributes, and no others, in its ``__dict__``."""
    if hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(wanted)


def _slots(kind: type) -> list[str]:
    names: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]
    return names


def unflatten(children: list[Any], form: Any) -> Any:
    """A container anew; an object without its constructor."""
    if isinstance(form, TreeSpec):
        return tree_unflatten(children, form)
    if isinstance(form, Items):
        return _with_items(children, form)
    if isinstance(form, Fields):
        record: Any = object.__new__(form.kind)
        _set_state(record, form.kind, dict(zip(form.names, children, strict=True)))
        return record
    return form(children) if isinstance(form, type) else dict(zip(form, children, strict=True))


def _with_items(children: list[Any], form: Items) -> Any:
    """An OrderedDict or named tuple anew, without its constructor."""
    made: Any
    if isinstance(form.keys, tuple):
        count = len(form.keys)
        made = OrderedDict(zip(form.keys, children[:count], strict=True))
    else:
        count = form.keys
        made = tuple.__new__(form.kind, children[:count])
    if form.names:
        vars(made).update(zip(form.names, children[count:], strict=True))
    return made


def _same_form(one: Any, other: Any) -> bool:
    """Whether containers are put together in the same way. Keys are compared by identity, since they may be tensors."""
    if type(one) is tuple and type(other) is tuple:
        return _identical([*one], [*other])
    if type(one) is Items and type(other) is Items:
        keys = [list(form.keys) if isinstance(form.keys, tuple) else [form.keys] for form in (one, other)]
        return one.kind is other.kind and one.names == other.names and _identical(*keys)
    if isinstance(one, TreeSpec) and isinstance(other, TreeSpec) and one.type is other.type is defaultdict:
        (factory, keys), (other_factory, other_keys) = one.context, other.context
        return factory is other_factory and _identical(keys, other_keys)
    return bool(one == other)


def _identical(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
