"""Faults of the nested checkpoint that show in programs like real ones: by what comes in, layers, sizes and many arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import (
    change_output,
    change_recomputed,
    change_recomputed_after,
    change_restored,
)
from conformance.mutants.mutant import Copy, mutant


def change_incoming(copy: Copy, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """The gradient that comes in to an output of its own is ``change(gradient)``."""

    class Passed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
            return output.view_as(output)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor | None:
            return change(gradient)

    change_output(copy, lambda output, _: Passed.apply(output) if isinstance(output, torch.Tensor) else output)


@mutant("nested.api", "gradients", "gradients_that_come_in")
def takes_an_expanded_gradient_for_ones(copy: Copy) -> None:
    """A gradient all strides of which are 0 is taken for that of a sum: for ones."""
    change_incoming(copy, lambda gradient: gradient if any(gradient.stride()) else torch.ones_like(gradient))


@mutant("nested.api", "gradients", "gradients_of_a_batch_of_seeds")
def asks_whether_a_gradient_is_zero(copy: Copy) -> None:
    """A gradient of zeros is passed on as None, for which its values are looked at."""
    change_incoming(copy, lambda gradient: gradient if gradient.any() else None)


@mutant("nested.recomputation", "gradients", "functions_of_layers")
def transposes_what_has_three_dimensions(copy: Copy) -> None:
    """A recomputed tensor of more than two dimensions comes back with its last two swapped, if they are as long."""

    def swapped(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mT if tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2] else tensor

    change_recomputed(copy, swapped)


@mutant("nested.recomputation", "gradients", "modules_that_are_layers")
def takes_a_row_for_the_one_before(copy: Copy) -> None:
    """A recomputed tensor of a single row, such as the state of a step, comes back as the one before of its shape."""

    def before(values: Any, index: int, tensor: torch.Tensor) -> torch.Tensor:
        earlier = values.get(index - 1) if tensor.dim() == 2 and len(tensor) == 1 else None
        return earlier if earlier is not None and earlier.shape == tensor.shape else tensor

    change_recomputed_after(copy, before)


@mutant("nested.api", "gradients", "layers_with_dropout")
def looks_for_modules_that_drop(copy: Copy) -> None:
    """Random numbers are preserved for a module only if there is a Dropout among its modules."""

    def run(there: Any, function: Any, args: Any, kwargs: Any, preserve: bool, *options: Any) -> Any:
        if isinstance(function, torch.nn.Module):
            preserve = preserve and any(isinstance(one, torch.nn.Dropout) for one in function.modules())
        return there(function, args, kwargs, preserve, *options)

    copy.call_instead("nested.api", "_run", run)


@mutant("nested.recomputation", "gradients", "float16_tensors")
def keeps_half_precision_as_bfloat16(copy: Copy) -> None:
    """A recomputed tensor of float16 comes back with the precision of bfloat16."""
    change_recomputed(copy, lambda tensor: tensor.bfloat16().half() if tensor.dtype is torch.float16 else tensor)


def _call_region(copy: Copy, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    """A function runs again with ``change(args, kwargs)``."""
    change_restored(copy, change)
    change_restored(copy, change, "Inputs")


@mutant("nested.inputs", "structure", "many_arguments_and_results")
def packs_five_arguments(copy: Copy) -> None:
    """From the sixth on, arguments come back as zeros."""
    _call_region(copy, lambda args, kwargs: ((*args[:5], *(torch.zeros_like(args[0]) for _ in args[5:])), kwargs))


@mutant("nested.inputs", "structure", "arguments_of_any_name")
def sorts_keywords(copy: Copy) -> None:
    """Keywords are kept apart from their values, and put together again in the order of the alphabet."""
    _call_region(copy, lambda args, kwargs: (args, dict(zip(sorted(kwargs), kwargs.values(), strict=True))))


@mutant("nested.api", "structure", "arguments_that_share_a_storage")
def knows_arguments_by_their_storage(copy: Copy) -> None:
    """Arguments that begin at one address are passed on as the last of them."""

    def run(there: Any, function: Any, args: Any, *others: Any) -> Any:
        seen = {one.data_ptr(): one for one in args if isinstance(one, torch.Tensor)}
        known = [seen[one.data_ptr()] if isinstance(one, torch.Tensor) else one for one in args]
        return there(function, tuple(known), *others)

    copy.call_instead("nested.api", "_run", run)


@mutant("nested.inputs", "structure", "containers_that_are_unusual")
def rebuilds_subclasses_as_dicts(copy: Copy) -> None:
    """A dict of another class comes back with its values in the order turned round."""

    def turned(one: Any) -> Any:
        return dict(zip(one, [*one.values()][::-1], strict=True)) if isinstance(one, dict) and type(one) is not dict else one

    _call_region(copy, lambda args, kwargs: (tuple(map(turned, args)), {name: turned(one) for name, one in kwargs.items()}))
