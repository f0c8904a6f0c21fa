"""The arguments of a region: flattened when forward runs, rebuilt for the recomputation."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from impls.state.hook_registrations import registration_count
from impls.tensors.packed import Packed
from impls.tensors.versions import VersionProbe, version_probe
from impls.torch_private import TreeSpec, top_hooks, tree_flatten, tree_is_leaf, tree_unflatten

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.Generator})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_NO_CONTAINERS = (_ATOMS | _TENSORS) - {torch.Generator}  # certainly no containers

# A container that goes through as it is, and what it holds as the run begins.
ReusedContainer = tuple["_Container", Any, list[Any]]
# Arguments, and the tensors among them.
Call = tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor], Sequence[ReusedContainer]]


def capture_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | FlatInputs:
    """The arguments of a call, in the cheapest way that will do: taking them apart costs more than all else that is fixed."""
    flat = _NO_CONTAINERS.issuperset(map(type, args)) and _NO_CONTAINERS.issuperset(map(type, kwargs.values()))
    if flat and not _hooks_are_active():
        inputs = FlatInputs(args, kwargs)
        if inputs.versions is not None:
            return inputs
    return Inputs(args, kwargs)


def _hooks_are_active() -> bool:
    return top_hooks(True) is not None


class FlatInputs:
    """Arguments, none of them a container, where nobody watches what is saved: autograd would keep the tensors themselves.

    ``versions`` is None if there is a tensor without version counter, made in inference mode: then this will not do.
    """

    __slots__ = ("args", "hooks_at_call", "hooks_at_end", "kwargs", "tensors", "versions")
    generators: tuple[torch.Generator, ...] = ()
    hooks_were_active = False

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args: tuple[Any, ...] | None = args
        self.kwargs = kwargs
        self.hooks_at_call, self.hooks_at_end = registration_count(), -1
        self.tensors: list[Any] = [one for one in (*args, *kwargs.values()) if type(one) in _TENSORS]
        self.versions: list[int] | None
        try:
            self.versions = [one._version for one in self.tensors]
        except RuntimeError:
            self.versions = None

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to be among them, and comes back as it is."""
        for one in self.tensors:  # noqa: SIM110 - any() takes longer
            if one is tensor:
                return True
        return False

    def first_changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        now = [one._version for one in self.tensors]
        if now == self.versions:
            return None
        return next(index for index, then in enumerate(self.versions or ()) if now[index] != then)

    def end_forward(self) -> None:
        """Forward is over. If it changed a tensor in place, let go of all: one may be an output, which holds the region."""
        self.hooks_at_end = registration_count()
        if self.first_changed() is not None:
            self.args, self.kwargs = None, {}
            self.tensors = [version_probe(one) for one in self.tensors]

    def registered_hooks(self) -> bool:
        """Whether hooks were registered while forward ran, on arguments or elsewhere."""
        return (registration_count() if self.hooks_at_end == -1 else self.hooks_at_end) != self.hooks_at_call

    def restore(self) -> Call:
        """The arguments."""
        assert self.args is not None
        return self.args, self.kwargs, self.tensors, ()


class Inputs:
    """The arguments of one call. Tensors at any depth become saved tensors of the enclosing region, each once (rule 2).

    Reached are positional and keyword arguments, containers that pytree knows, and dataclasses that are all in their
    fields; what is there several times is one object in the recomputation, too. A container of Python's own that still holds
    what it held, and no tensor that comes back as another object, goes through as it is; others are made anew. Other
    objects are kept as they are: a tensor inside one is not watched.
    """

    __slots__ = ("__weakref__", "args", "captured", "containers", "generators", "hooks_at_call", "hooks_at_end",
                 "hooks_were_active", "indices", "kwargs", "packed", "probes", "versions")  # fmt: skip

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.packed: list[Packed | torch.Tensor] | None = []
        # Where nobody watches what is saved, autograd would keep the tensor itself, and so does this.
        self.hooks_were_active = _hooks_are_active()
        self.hooks_at_call, self.hooks_at_end = registration_count(), -1
        self.probes: list[VersionProbe] = []
        self.versions: list[int] = []
        self.generators: list[torch.Generator] = []
        self.containers: list[_Container] = []  # those that are kept, the ones inside of others first
        self.indices: dict[int, _Position] = {}
        self.captured: dict[int, _Container] = {}
        self.args = [self._capture(one) for one in args]
        self.kwargs = {name: self._capture(one) for name, one in kwargs.items()}
        for each in (self.indices, self.captured):
            each.clear()  # identities are valid only while the arguments are alive
        if self.containers:
            _revisit(self)

    def _capture(self, value: Any) -> Any:
        kind = type(value)
        if kind in _TENSORS or (kind not in _ATOMS and isinstance(value, torch.Tensor)):
            return self._capture_tensor(value)
        if kind in _ATOMS:
            if kind is torch.Generator:
                self.generators.append(value)
            return value
        if id(value) in self.captured:
            return self.captured[id(value)]
        parts = _flatten(value)
        if parts is None:
            return value
        container = self.captured[id(value)] = _Container([self._capture(one) for one in parts.children], parts.form)
        if kind in _BUILTIN_CONTAINERS or isinstance(value, tuple) or isinstance(parts.form, _Fields):
            container.original = value
            if container.holds(map(self._original, container.children)):
                self.containers.append(container)
            else:
                container.original = _GONE
        return container

    def _capture_tensor(self, tensor: torch.Tensor) -> _Position:
        position = self.indices.get(id(tensor))
        if position is None:
            assert self.packed is not None
            position = self.indices[id(tensor)] = _Position(len(self.packed))
            if self.hooks_were_active or tensor.is_inference():
                self.packed.append(Packed(tensor))
                self.probes.append(version_probe(tensor))
            else:
                self.packed.append(tensor)
                self.probes.append(tensor)
            self.versions.append(self.probes[-1]._version)
        return position

    def _original(self, child: Any) -> Any:
        """What a child was, as far as it is here without anything being unpacked or made; _GONE otherwise."""
        if type(child) is _Position:
            packed = None if self.packed is None else self.packed[child]
            whole = packed.parameter if type(packed) is Packed else packed
            return _GONE if whole is None else whole
        return child.original if type(child) is _Container else child

    def drop_changed_containers(self) -> bool:
        """Let go of containers that hold something else by now, which are made anew; whether others are left."""
        for container in self.containers:
            if not container.holds(map(self._original, container.children)):
                container.original = _GONE
        self.containers = [one for one in self.containers if one.original is not _GONE]
        return bool(self.containers)

    def contains(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is known to be among them, and comes back as it is. That takes too long to find out here."""
        return False

    def first_changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        for index, then in enumerate(self.versions):
            if self.probes[index]._version != then:
                return index
        return None

    def end_forward(self) -> None:
        """Forward is over. If it changed a tensor in place, let go of all: one may be an output, which holds the region."""
        self.hooks_at_end = registration_count()
        self.drop_changed_containers()
        if self.first_changed() is not None:
            self.args, self.kwargs, self.packed, self.containers = [], {}, None, []
            self.probes = [version_probe(one) if isinstance(one, torch.Tensor) else one for one in self.probes]

    def registered_hooks(self) -> bool:
        """Whether hooks were registered while forward ran, on arguments or elsewhere."""
        return (registration_count() if self.hooks_at_end == -1 else self.hooks_at_end) != self.hooks_at_call

    def restore(self) -> Call:
        """The arguments. Containers hold what they held at the call, whatever has happened to them since."""
        assert self.packed is not None
        tensors = [
            packed if isinstance(packed, torch.Tensor) else packed.unpack(version)
            for packed, version in zip(self.packed, self.versions, strict=True)
        ]
        made: dict[int, Any] = {}
        through: list[ReusedContainer] = []
        args = tuple(_rebuild(one, tensors, made, through) for one in self.args)
        return args, {name: _rebuild(one, tensors, made, through) for name, one in self.kwargs.items()}, tensors, through


def restore_containers(through: Iterable[ReusedContainer]) -> None:
    """Undo what a run has done to the containers that went through as they are; it may have been stopped half-way.

    What others did to a container before the run stays: that one did not go through, but was made anew.
    """
    for container, itself, children in through:
        container.refill(itself, children)


class _Position(int):
    """Stands for the tensor with that index."""


_BUILTIN_CONTAINERS = frozenset({list, dict, OrderedDict, defaultdict, deque})
_GONE = object()


class _Parts(NamedTuple):
    """A container as its children, and what makes one of these again."""

    children: list[Any]
    form: Any


class _Fields(NamedTuple):
    """A dataclass, and the names of what an instance holds."""

    kind: type
    names: tuple[str, ...]


class _Container:
    """Stands for a container. ``itself`` is the container as long as that is known to hold what it held, or else _GONE."""

    __slots__ = ("children", "form", "original")

    def __init__(self, children: list[Any], form: Any) -> None:
        self.children, self.form, self.original = children, form, _GONE

    def holds(self, children: Iterable[Any]) -> bool:
        """Whether the container is here, and has these children."""
        return self.with_children([*children]) is not _GONE

    def with_children(self, children: list[Any]) -> Any:
        """The container itself if it has these children, _GONE otherwise."""
        value = self.original
        return value if value is not _GONE and self._consists_of(value, children) else _GONE

    def _consists_of(self, value: Any, children: list[Any]) -> bool:
        now = _flatten(value)
        return now is not None and _same_form(now.form, self.form) and _identical(now.children, children)

    def refill(self, value: Any, children: list[Any]) -> None:
        """Give the container ``value`` these children again, although it may have been let go meanwhile."""
        if self._consists_of(value, children):
            return
        whole = _unflatten(children, self.form)
        if isinstance(self.form, _Fields):
            vars(value).clear()
            vars(value).update(vars(whole))
        elif isinstance(value, list):
            value[:] = whole
        elif not isinstance(value, tuple):
            value.clear()
            value.update(whole) if isinstance(value, dict) else value.extend(whole)


def _flatten(value: Any) -> _Parts | None:
    """What a container consists of; None if it is none."""
    kind = type(value)
    if kind is list or kind is tuple:
        return _Parts(list(value), kind)
    if kind is dict:
        return _Parts([*value.values()], tuple(value))
    if not tree_is_leaf(value):
        own = id(value)  # the function is kept until the garbage collector runs: so it is to hold no tensor
        return _Parts(*tree_flatten(value, lambda node: id(node) != own))
    if _is_record(value):
        fields = vars(value)
        return _Parts([*fields.values()], _Fields(kind, tuple(fields)))
    return None


def _is_record(value: Any) -> bool:
    """Whether an object is all in its fields, so that it can be rebuilt from them exactly."""
    bases = type(value).__mro__[:-1]
    return bool(bases) and all(dataclasses.is_dataclass(base) and "__slots__" not in vars(base) for base in bases)


def _unflatten(children: list[Any], form: Any) -> Any:
    """A container anew; a dataclass without its constructor."""
    if isinstance(form, TreeSpec):
        return tree_unflatten(children, form)
    if isinstance(form, _Fields):
        record: Any = object.__new__(form.kind)
        vars(record).update(zip(form.names, children, strict=True))
        return record
    return form(children) if isinstance(form, type) else dict(zip(form, children, strict=True))


def _rebuild(value: Any, tensors: list[torch.Tensor], made: dict[int, Any], through: list[ReusedContainer]) -> Any:
    """What ``value`` stands for, with these tensors in their places; ``made`` has the containers that are done."""
    if type(value) is _Position:
        return tensors[value]
    if type(value) is not _Container:
        return value
    if id(value) not in made:
        children = [_rebuild(one, tensors, made, through) for one in value.children]
        itself = value.with_children(children)
        if itself is not _GONE:
            through.append((value, itself, children))
        made[id(value)] = _unflatten(children, value.form) if itself is _GONE else itself
    return made[id(value)]


def _same_form(one: Any, other: Any) -> bool:
    """Whether containers are put together in the same way; keys of a dict, which may be tensors, are not compared by value."""
    if type(one) is tuple and type(other) is tuple:
        return _identical([*one], [*other])
    return bool(one == other)


def _identical(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


_earlier_inputs: deque[weakref.ref[Inputs]] = deque()


def _revisit(inputs: Inputs) -> None:
    """Look at the containers that two earlier calls keep, and at these later on.

    A list that an output was appended to since holds the region that keeps it, through the graph, where the garbage
    collector does not see it. With two looks a call such lists cannot gather.
    """
    for _ in range(min(2, len(_earlier_inputs))):
        try:
            earlier = _earlier_inputs.popleft()()
        except IndexError:  # another thread was first
            break
        if earlier is not None and earlier.drop_changed_containers():
            _earlier_inputs.append(weakref.ref(earlier))
    _earlier_inputs.append(weakref.ref(inputs))
