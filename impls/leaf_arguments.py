"""The arguments of a region that is a single node: saved in forward, restored as leaves for the recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from impls.tensors.attributes import as_class, attributes, with_attributes
from impls.tensors.versions import version_probe
from impls.torch_private import top_hooks


def save_arguments(ctx: Any, args: Sequence[Any]) -> None:
    """Keep the arguments in the node: tensors as saved tensors, each once, and other values as they are."""
    unique = {id(argument): argument for argument in args if isinstance(argument, torch.Tensor)}
    order = list(unique)
    ctx.places = [(order.index(id(a)), None) if isinstance(a, torch.Tensor) else (None, a) for a in args]
    ctx.save_for_backward(*unique.values())
    # Autograd compares versions itself, but not where hooks put something else in the tensor's place.
    counters = [version_probe(tensor) for tensor in unique.values()] if hooks_are_active() else []
    ctx.counters = [(one, one._version) for one in counters]


def hooks_are_active() -> bool:
    """Whether saved-tensor hooks are active on this thread."""
    return top_hooks(True) is not None


def restore_arguments(ctx: Any) -> tuple[Any, ...]:
    """The arguments, tensors made leaves by :func:`detach_variable`.

    Raises RuntimeError when a tensor argument was changed in place since.
    """
    for index, (now, then) in enumerate(ctx.counters):
        if now._version != then:
            raise RuntimeError(
                f"tensor argument {index} of a checkpointed function has been modified by an inplace operation since: "
                f"it is at version {now._version}, expected version {then}. Clone it first"
            )
    tensors = ctx.saved_tensors
    return detach_variable(tuple(value if place is None else tensors[place] for place, value in ctx.places))


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each tensor as a leaf of its own that requires grad if the tensor does; one that occurs twice stays one.

    A parameter stays a parameter, and Python attributes are taken along. Values that are not tensors are handed
    through. Raises TypeError for anything but a tuple.
    """
    if not isinstance(inputs, tuple):
        raise TypeError(f"inputs is a {type(inputs).__name__}; it must be a tuple")
    tensors = {id(value): value for value in inputs if isinstance(value, torch.Tensor)}
    leaves = {
        key: as_class(tensor.detach(), type(tensor)).requires_grad_(tensor.requires_grad) for key, tensor in tensors.items()
    }
    for key, tensor in tensors.items():
        wanted = {name: leaves.get(id(value), value) for name, value in attributes(tensor).items()}
        with_attributes(leaves[key], type(tensor), wanted)
    return tuple(leaves[id(value)] if isinstance(value, torch.Tensor) else value for value in inputs)
