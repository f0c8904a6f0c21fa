"""Microbatches: inputs split along dimension 0, outputs joined along it."""

from __future__ import annotations

from typing import Any

import torch

from impls.offload.containers import ATOMS, flatten
from impls.torch_private import tree_flatten, tree_unflatten

Call = tuple[tuple[Any, ...], dict[str, Any]]


def split(args: tuple[Any, ...], kwargs: dict[str, Any], parts: int) -> list[Call]:
    """The arguments of each microbatch: rows as ``torch.tensor_split`` divides them, all else as it is.

    Raises ValueError unless all tensors, at least one, have the same number of rows, which is ``parts`` or more.
    """
    if parts == 1:
        return [(args, kwargs)]
    tensors, whole = flatten((args, kwargs))  # what is given twice stays one
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    rows = {shape[:1] for shape in shapes}
    if len(rows) != 1 or () in rows:
        raise ValueError(f"inputs have shapes {shapes}; with num_microbatches={parts} all must have the same number of rows")
    count = tensors[0].shape[0]
    if count < parts:
        raise ValueError(f"num_microbatches is {parts}; the inputs have {count} rows, and it must not be more than that")
    with torch.enable_grad():  # a module may enable it, and then need them
        pieces = [torch.tensor_split(tensor, parts) for tensor in tensors]
    return [whole.build([piece[index] for piece in pieces]) for index in range(parts)]


def join(values: list[Any]) -> Any:
    """One value from those of all microbatches: tensors one after the other along dimension 0, the rest as it is.

    A tensor that is there several times is one again; a container is not.

    Raises ValueError when they differ in structure or in what is no tensor, or when a tensor has no dimension 0. Not
    checked: that rows do not depend on each other.
    """
    if len(values) == 1:
        return values[0]
    apart = [tree_flatten(value, lambda node: type(node) is torch.Size) for value in values]
    leaves, structures = zip(*apart, strict=True)
    for index, structure in enumerate(structures):
        if structure != structures[0]:
            raise ValueError(f"outputs of microbatches 0 and {index} differ in structure: {structures[0]} and {structure}")
    joined: dict[tuple[int, ...], torch.Tensor] = {}  # one returned twice stays one
    return tree_unflatten([_joined(parts, joined) for parts in zip(*leaves, strict=True)], structures[0])


def _joined(parts: tuple[Any, ...], joined: dict[tuple[int, ...], torch.Tensor]) -> Any:
    if all(isinstance(part, torch.Tensor) for part in parts):
        if any(part.dim() == 0 for part in parts):
            raise ValueError(
                "an output is a tensor without dimensions, such as a mean over rows: it cannot be joined from microbatches. "
                "Reduce outside of the model, or use num_microbatches=1"
            )
        key = tuple(map(id, parts))
        if key not in joined:
            with torch.enable_grad():  # as they may have a graph under no_grad, too, from a module that enables it
                joined[key] = torch.cat(parts)
        return joined[key]
    first = parts[0]
    for index, part in enumerate(parts):
        if part is not first and not (type(part) is type(first) and type(part) in ATOMS and part == first):
            raise ValueError(
                f"outputs of microbatches 0 and {index} are {first!r} and {part!r}; what is no tensor must be equal"
            )
    return first
