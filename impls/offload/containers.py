"""Values taken apart into tensors and containers, and put together again with other tensors in their places."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from impls.torch_private import TreeSpec, tree_flatten, tree_is_leaf, tree_unflatten

ATOMS = frozenset({bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})


class _Tensor(NamedTuple):
    """Stands for the tensor with this number."""

    number: int


class _Container(NamedTuple):
    """How a container is made of what has these numbers."""

    spec: TreeSpec
    parts: list[int]


class Structure:
    """How a value is put together: each thing that it consists of once, parts before what holds them."""

    def __init__(self) -> None:
        self.things: list[Any] = []

    def objects(self) -> list[Any]:
        """What is neither a tensor nor a container that pytree knows."""
        return [thing for thing in self.things if not isinstance(thing, _Tensor | _Container)]

    def build(self, tensors: list[torch.Tensor]) -> Any:
        """The value with these tensors, in fresh containers; what was there several times is one object again."""
        made: list[Any] = []
        for thing in self.things:
            if isinstance(thing, _Tensor):
                made.append(tensors[thing.number])
            elif isinstance(thing, _Container):
                made.append(tree_unflatten([made[part] for part in thing.parts], thing.spec))
            else:
                made.append(thing)
        return made[-1]


def flatten(value: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors that pytree reaches in a value, each once, and how the value is put together."""
    tensors: list[torch.Tensor] = []
    whole = Structure()
    _flatten(value, tensors, whole, {})
    return tensors, whole


def _flatten(value: Any, tensors: list[torch.Tensor], whole: Structure, known: dict[int, tuple[int, Any]]) -> int:
    """The number of a thing; ``known`` has the numbers by identity, and things themselves, as pytree may have made them."""
    key = id(value)
    if key not in known:
        thing: Any = value
        if isinstance(value, torch.Tensor):
            thing = _Tensor(len(tensors))
            tensors.append(value)
        elif not tree_is_leaf(value) and type(value) is not torch.Size:  # of which pytree makes a tuple
            # Pytree keeps the function until the garbage collector runs, so it may hold nothing but a number.
            parts, spec = tree_flatten(value, lambda node: id(node) != key)
            thing = _Container(spec, [_flatten(part, tensors, whole, known) for part in parts])
        known[key] = len(whole.things), value
        whole.things.append(thing)
    return known[key][0]
