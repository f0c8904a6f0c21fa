"""What a region was called with: taken apart when forward runs, put together again for the recomputation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from impls.versions import Counter, counter

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Generator})


class _SaveForBackward(torch.autograd.Function):
    """Saves tensors for releases of torch that cannot make a saved tensor without a node."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> NoReturn:
        raise AssertionError("nothing is connected to this node")


class _Packed:
    """A tensor saved through whatever hooks are active, as autograd itself would save it (rule 2)."""

    __slots__ = ("attributes", "node", "parameter", "saved")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A parameter outlives the region in any case, and hooks would bring it back as a plain tensor.
        self.parameter: torch.Tensor | None = tensor if isinstance(tensor, torch.nn.Parameter) else None
        self.saved = self.node = None
        self.attributes = dict(vars(tensor))  # hooks hand back another object
        make = getattr(torch._C._autograd, "_make_saved_tensor", None)
        if tensor.is_inference():
            self.parameter = tensor
        elif make is not None:
            self.saved = make(tensor, is_output=False)
        else:
            self.node = _SaveForBackward.apply(torch.empty(0, requires_grad=True), tensor)  # its tensor keeps a node alive

    def unpack(self) -> torch.Tensor:
        if self.parameter is not None:
            return self.parameter
        if self.saved is not None:
            tensor = self.saved.unpack()
        else:
            assert self.node is not None
            tensor = self.node.grad_fn.saved_tensors[0]
        if self.attributes and not vars(tensor):
            vars(tensor).update(self.attributes)
        return tensor


class _Fields:
    """A dataclass instance that pytree does not know, taken apart like a container."""

    __slots__ = ("fields", "kind")

    def __init__(self, value: Any, store: Inputs) -> None:
        self.kind = type(value)
        self.fields = store.take_apart(dict(vars(value)))

    def rebuild(self, tensors: list[torch.Tensor]) -> Any:
        value = object.__new__(self.kind)
        vars(value).update(put_together(self.fields, tensors))
        return value


class _Position(int):
    """Stands for the tensor with that index."""


class Inputs:
    """The arguments of one call. Tensors at any depth become saved tensors of the enclosing region, each once (rule 2).

    Reached are positional and keyword arguments, containers that pytree knows, and dataclasses. Other objects are kept
    as they are: a tensor inside one stays alive and is not watched.
    """

    __slots__ = ("counters", "generators", "indices", "packed", "structure", "versions")

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.packed: list[_Packed] | None = []
        self.counters: list[Counter] = []
        self.versions: list[int] = []
        self.generators: list[torch.Generator] = []
        self.indices: dict[int, _Position] = {}
        self.structure = self.take_apart((tuple(args), dict(kwargs)))
        self.indices.clear()  # identities are valid only while the arguments are alive

    def take_apart(self, tree: Any) -> tuple[list[Any], TreeSpec]:
        leaves, spec = tree_flatten(tree)
        return [self._leaf(leaf) for leaf in leaves], spec

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf)
        if type(leaf) in _ATOMS:
            if isinstance(leaf, torch.Generator):
                self.generators.append(leaf)
            return leaf
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and hasattr(leaf, "__dict__"):
            return _Fields(leaf, self)
        return leaf

    def _tensor(self, tensor: torch.Tensor) -> _Position:
        position = self.indices.get(id(tensor))
        if position is None:
            assert self.packed is not None
            position = self.indices[id(tensor)] = _Position(len(self.packed))
            self.packed.append(_Packed(tensor))
            self.counters.append(counter(tensor))
            self.versions.append(self.counters[-1]._version)
        return position

    def changed(self) -> int | None:
        """The index of the first tensor that was changed in place since the call, None when there is none."""
        for index, (now, then) in enumerate(zip(self.counters, self.versions, strict=True)):
            if now._version != then:
                return index
        return None

    def release(self) -> None:
        """Let go of the tensors; the arguments cannot be put together any more."""
        self.packed = None

    def restore(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments anew. Containers are fresh, so nothing that happened to the originals since is seen."""
        assert self.packed is not None
        tensors = [packed.unpack() for packed in self.packed]
        return put_together(self.structure, tensors)


def put_together(structure: tuple[list[Any], TreeSpec], tensors: list[torch.Tensor]) -> Any:
    """What was taken apart, with these tensors at their places."""
    leaves, spec = structure

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, _Position):
            return tensors[leaf]
        return leaf.rebuild(tensors) if isinstance(leaf, _Fields) else leaf

    return tree_unflatten([whole(leaf) for leaf in leaves], spec)
