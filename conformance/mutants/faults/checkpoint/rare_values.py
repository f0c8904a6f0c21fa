"""Faults of the nested checkpoint that show in tensors that are rarely met: by their rank, strides, size, values or class."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from conformance.mutants.faults.checkpoint.seams import change_recomputed
from conformance.mutants.mutant import Copy, mutant


@mutant("nested.recomputation", "gradients", "tensors_of_any_rank")
def turns_what_has_five_dimensions(copy: Copy) -> None:
    """A recomputed tensor of more than four dimensions comes back with its elements in the order turned round."""
    change_recomputed(copy, lambda tensor: tensor.flip(0) if tensor.dim() > 4 else tensor)


@mutant("nested.recomputation", "gradients", "tensors_of_any_rank")
def keeps_vectors_by_eights(copy: Copy) -> None:
    """Of a recomputed vector of more than eight elements, those beyond the last whole eight come back as zeros."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        whole = len(tensor) // 8 * 8 if tensor.dim() == 1 else 0
        return torch.cat((tensor[:whole], torch.zeros_like(tensor[whole:]))) if whole else tensor

    change_recomputed(copy, cut)


@mutant("nested.recomputation", "gradients", "strides_of_three_dimensions")
def reads_three_dimensions_in_the_order_of_memory(copy: Copy) -> None:
    """A recomputed tensor of three dimensions comes back with the elements in the order in which they are in memory."""

    def read(tensor: torch.Tensor) -> torch.Tensor:
        fills = tensor.dim() == 3 and tensor.untyped_storage().nbytes() >= tensor.nbytes
        return tensor.as_strided(tensor.shape, (tensor.shape[1] * tensor.shape[2], tensor.shape[2], 1)) if fills else tensor

    change_recomputed(copy, read)


@mutant("nested.recomputation", "gradients", "large_tensors")
def packs_booleans_in_blocks(copy: Copy) -> None:
    """Recomputed booleans beyond the last whole block of 4,096 come back as False."""

    def packed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype is not torch.bool or tensor.numel() <= 4096:
            return tensor
        flat = tensor.flatten()
        whole = flat[: len(flat) // 4096 * 4096]
        return torch.cat((whole, torch.zeros_like(flat[len(whole) :]))).view_as(tensor)

    change_recomputed(copy, packed)


@mutant("nested.recomputation", "gradients", "large_tensors")
def keeps_what_is_large_in_half_precision(copy: Copy) -> None:
    """Recomputed tensors of float32 of more than 10,000 elements come back rounded to bfloat16."""

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        large = tensor.dtype is torch.float32 and tensor.numel() > 10_000
        return tensor.bfloat16().float() if large else tensor

    change_recomputed(copy, rounded)


@mutant("nested.recomputation", "gradients", "numbers_of_any_magnitude")
def keeps_integers_in_sixteen_bits(copy: Copy) -> None:
    """Recomputed integers come back through int16."""
    change_recomputed(copy, lambda tensor: tensor.short().long() if tensor.dtype is torch.int64 else tensor)


@mutant("nested.recomputation", "gradients", "numbers_of_any_magnitude")
def keeps_integers_as_float32(copy: Copy) -> None:
    """Recomputed integers come back through float32, so that those of more than 24 bits are rounded."""
    change_recomputed(copy, lambda tensor: tensor.float().long() if tensor.dtype is torch.int64 else tensor)


@mutant("nested.recomputation", "gradients", "numbers_of_any_magnitude")
def takes_what_is_tiny_for_zero(copy: Copy) -> None:
    """Recomputed numbers of float32 nearer to zero than 1e-20 come back as zero."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        tiny = (tensor != 0) & (tensor.abs() < 1e-20) if tensor.dtype is torch.float32 else None
        return tensor.masked_fill(tiny, 0) if tiny is not None and tiny.any() else tensor

    change_recomputed(copy, cut)


@mutant("state.modes", "ambient", "operators_of_subclasses_are_forwards")
def calls_no_operators_of_subclasses(copy: Copy) -> None:
    """A recomputation calls a subclass's operators where backward does."""
    copy.call_instead("state.modes", "with_function_state", lambda there, wanted: nullcontext())


@mutant("state.modes", "ambient", "operators_of_subclasses_are_forwards")
def calls_operators_of_subclasses_always(copy: Copy) -> None:
    """A recomputation calls a subclass's operators, whether forward did or not."""
    enabled = torch._C._TorchFunctionState.ENABLED  # type: ignore[attr-defined]
    copy.call_instead("state.modes", "with_function_state", lambda there, wanted: there(enabled))
