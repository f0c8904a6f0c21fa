"""What a region was called with: taken apart when forward runs, put together again for the recomputation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_is_leaf, tree_unflatten

from impls.packed import Packed
from impls.versions import Counter, counter

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.Generator})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_FLAT = _ATOMS | _TENSORS  # certainly no containers
_KEPT = _FLAT - {torch.Generator}


class _Record:
    """Taken apart once and put together once, wherever it is: a dataclass that holds tensors, or, of no kind, a container."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type | None, fields: tuple[list[Any], TreeSpec]) -> None:
        self.kind, self.fields = kind, fields

    def rebuild(self, tensors: list[torch.Tensor], made: dict[int, Any]) -> Any:
        if id(self) not in made:
            if self.kind is None:
                made[id(self)] = put_together(self.fields, tensors, made)
                return made[id(self)]
            made[id(self)] = object.__new__(self.kind)
            vars(made[id(self)]).update(put_together(self.fields, tensors, made))
        return made[id(self)]


def _is_record(value: Any) -> bool:
    """Whether an object is all in its fields, so that it can be rebuilt from them exactly."""
    bases = type(value).__mro__[:-1]
    return bool(bases) and all(dataclasses.is_dataclass(base) and "__slots__" not in vars(base) for base in bases)


class _Position(int):
    """Stands for the tensor with that index."""


class Hooked:
    """Tensors with the hooks that they have now. What a function registers on them when it runs again is one hook too many."""

    __slots__ = ("before", "tensors")

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors, self.before = tensors, [_hooks(tensor) for tensor in tensors]

    def restore(self) -> None:
        """Take off the hooks that have come since."""
        for tensor, before in zip(self.tensors, self.before, strict=True):
            now = _hooks(tensor)
            if now == before:
                continue
            for registered in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks):
                for key in set(registered or ()) - before:
                    registered.pop(key)  # type: ignore[union-attr]


def _hooks(tensor: torch.Tensor) -> frozenset[int]:
    backward, accumulated = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return _NO_HOOKS if backward is None and accumulated is None else frozenset((*(backward or ()), *(accumulated or ())))


_NO_HOOKS: frozenset[int] = frozenset()


# The leaves, and either how pytree puts them together or, where all are arguments themselves, the names of the last ones.
Structure = tuple[list[Any], TreeSpec | tuple[str, ...]]


def taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | Held:
    """The arguments of a call, in the cheapest way that will do: taking them apart costs more than all else that is fixed."""
    if _KEPT.issuperset(map(type, args)) and _KEPT.issuperset(map(type, kwargs.values())) and not _watched():
        held = Held(args, kwargs)
        if held.versions is not None:
            return held
    return Inputs(args, kwargs)


def _watched() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


class Held:
    """Arguments, none of them a container, where nobody watches what is saved: autograd would keep the tensors themselves.

    ``versions`` is None if there is a tensor without version counter, made in inference mode: then this will not do.
    """

    __slots__ = ("args", "kwargs", "tensors", "versions")
    generators: tuple[torch.Generator, ...] = ()

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args: tuple[Any, ...] | None = args
        self.kwargs = kwargs
        self.tensors: list[Any] = [one for one in (*args, *kwargs.values()) if type(one) in _TENSORS]
        self.versions: list[int] | None
        try:
            self.versions = [one._version for one in self.tensors]
        except RuntimeError:
            self.versions = None

    def changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        now = [one._version for one in self.tensors]
        if now == self.versions:
            return None
        return next(index for index, then in enumerate(self.versions or ()) if now[index] != then)

    def release(self) -> None:
        """Let go of the tensors; the arguments cannot be put together any more."""
        self.args, self.kwargs = None, {}
        self.tensors = [counter(one) for one in self.tensors]

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any], Hooked]:
        """The arguments, and their hooks."""
        assert self.args is not None
        return self.args, self.kwargs, Hooked(self.tensors)


class Inputs:
    """The arguments of one call. Tensors at any depth become saved tensors of the enclosing region, each once (rule 2).

    Reached are positional and keyword arguments, containers that pytree knows, and dataclasses that are all in their
    fields; what is there several times is one object in the recomputation, too. Other objects, and dataclasses without
    a tensor, are kept as they are: a tensor inside one is not watched.
    """

    __slots__ = ("counters", "generators", "indices", "packed", "records", "repeated", "structure", "versions",
                 "watched")  # fmt: skip

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.packed: list[Packed | torch.Tensor] | None = []
        # Where nobody watches what is saved, autograd would keep the tensor itself, and so does this.
        self.watched = _watched()
        self.counters: list[Counter] = []
        self.versions: list[int] = []
        self.generators: list[torch.Generator] = []
        self.indices: dict[int, _Position] = {}
        self.records: dict[int, Any] = {}
        self.repeated: set[int] = set()
        self.structure: Structure
        if _FLAT.issuperset(map(type, args)) and _FLAT.issuperset(map(type, kwargs.values())):
            # Nearly always so, and pytree takes longer than everything else that a region costs.
            self.structure = [self._leaf(leaf) for leaf in (*args, *kwargs.values())], tuple(kwargs)
        else:
            tree = tuple(args), dict(kwargs)
            self.repeated = _repeated(tree)
            self.structure = self.take_apart(tree)
        for each in (self.indices, self.records, self.repeated):
            each.clear()  # identities are valid only while the arguments are alive

    def take_apart(self, tree: Any) -> tuple[list[Any], TreeSpec]:
        inner = self.repeated - {id(tree)}
        leaves, spec = tree_flatten(tree, lambda node: id(node) in inner or type(node) is torch.Size)  # which gives a tuple
        return [self._leaf(leaf) for leaf in leaves], spec

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf)
        if type(leaf) in _ATOMS:
            if isinstance(leaf, torch.Generator):
                self.generators.append(leaf)
            return leaf
        if id(leaf) in self.repeated and not tree_is_leaf(leaf):
            if id(leaf) not in self.records:
                self.records[id(leaf)] = _Record(None, self.take_apart(leaf))
            return self.records[id(leaf)]
        return self._record(leaf) if _is_record(leaf) else leaf

    def _record(self, value: Any) -> Any:
        if id(value) not in self.records:
            self.records[id(value)] = value  # one that contains itself is kept as it is
            fields = self.take_apart(dict(vars(value)))
            if any(isinstance(leaf, _Position | _Record) for leaf in fields[0]):
                self.records[id(value)] = _Record(type(value), fields)
        return self.records[id(value)]

    def _tensor(self, tensor: torch.Tensor) -> _Position:
        position = self.indices.get(id(tensor))
        if position is None:
            assert self.packed is not None
            position = self.indices[id(tensor)] = _Position(len(self.packed))
            if self.watched or tensor.is_inference():
                self.packed.append(Packed(tensor))
                self.counters.append(counter(tensor))
            else:
                self.packed.append(tensor)
                self.counters.append(tensor)
            self.versions.append(self.counters[-1]._version)
        return position

    def changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        for index, then in enumerate(self.versions):
            if self.counters[index]._version != then:
                return index
        return None

    def release(self) -> None:
        """Let go of the tensors; the arguments cannot be put together any more."""
        self.packed = None
        self.counters = [counter(one) if isinstance(one, torch.Tensor) else one for one in self.counters]

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any], Hooked]:
        """The arguments anew, and their hooks. Containers are fresh, so nothing that happened to them since is seen."""
        assert self.packed is not None
        tensors = [
            packed if isinstance(packed, torch.Tensor) else packed.unpack(version)
            for packed, version in zip(self.packed, self.versions, strict=True)
        ]
        leaves, spec = self.structure
        if isinstance(spec, TreeSpec):
            return *put_together((leaves, spec), tensors, {}), Hooked(tensors)
        values = [tensors[leaf] if type(leaf) is _Position else leaf for leaf in leaves]
        positional = len(values) - len(spec)
        return tuple(values[:positional]), dict(zip(spec, values[positional:], strict=True)), Hooked(tensors)


def _repeated(tree: Any) -> set[int]:
    """The identities of what is there several times.

    A function that pytree is given is kept until the garbage collector runs: so it is to hold no tensor.
    """
    seen: dict[int, Any] = {}
    repeated: set[int] = set()
    trees = [tree]

    def again(node: Any) -> bool:
        if id(node) in seen:
            repeated.add(id(node))
            return True
        seen[id(node)] = node  # alive from here on, as pytree may have made it for this alone
        if _is_record(node):
            trees.append(dict(vars(node)))
        return False

    for each in trees:
        tree_flatten(each, again)
    seen.clear()
    trees.clear()
    return repeated


def put_together(structure: tuple[list[Any], TreeSpec], tensors: list[torch.Tensor], made: dict[int, Any]) -> Any:
    """What was taken apart, with these tensors at their places; ``made`` are the records that are done."""
    leaves, spec = structure

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, _Position):
            return tensors[leaf]
        return leaf.rebuild(tensors, made) if isinstance(leaf, _Record) else leaf

    return tree_unflatten([whole(leaf) for leaf in leaves], spec)
