"""Counts what a program rounds on the longest way through it, to test what those who build programs say of their sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What moves, compares or chooses values, and rounds none.
EXACT = {
    "_conj", "_neg_view", "_to_copy", "_unsafe_view", "abs", "alias", "as_strided", "bernoulli_", "cat", "clamp", "clamp_",
    "clamp_min", "clamp_min_", "clone", "constant_pad_nd", "copy_", "detach", "detach_", "diagonal", "empty_like", "eq",
    "expand", "fill_", "flip", "gather", "gt", "hardtanh", "hardtanh_", "hardtanh_backward", "index", "index_copy_",
    "index_select", "lift_fresh", "masked_fill", "masked_fill_", "max", "ne", "neg", "new_empty_strided", "new_zeros",
    "ones_like", "permute", "relu", "relu_", "select", "select_backward", "sign", "slice", "slice_backward", "sort", "split",
    "squeeze", "stack", "t", "threshold_backward", "topk", "transpose", "unbind", "unsqueeze", "view", "view_as_real", "where",
    "zero_", "zeros_like",
}  # fmt: skip
MADE = {"empty", "full", "linspace", "normal_", "ones", "rand", "rand_like", "randint", "randn", "random_", "uniform_", "zeros"}
ARITHMETIC = {
    "add", "add_", "addcdiv_", "addcmul_", "div", "div_", "lerp_", "mul", "mul_", "reciprocal", "rrelu_with_noise",
    "rrelu_with_noise_backward", "rsub", "sqrt", "sub", "sub_",
}  # fmt: skip


class RoundingMeter(TorchDispatchMode):
    """The most roundings between a tensor that is given and one that is computed, over all of them, forward and backward.

    A sum of n products counts n, and in a dtype of 16 bits, for which kernels add up in float32, 1; an operation of
    arithmetic 1, a function 2; complex numbers count thrice. What follows in one storage is taken to depend on all of it. Of
    a kernel that is not known it is the largest size of any dimension, and 8 more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deep: dict[Any, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, made = _numbers((args, kwargs)), _numbers(result)
        before = max((self.deep.get(_place(one), 0) for one in given), default=0)
        for one in made:
            after = 0 if name in MADE else before + cost(name, args, made, given)
            self.deep[_place(one)] = after if name in MADE else max(after, self.deep.get(_place(one), 0))
            self.most = max(self.most, after)
        return result


def _numbers(tree: Any) -> list[torch.Tensor]:
    found = [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]
    return [one for one in found if one.dtype.is_floating_point or one.dtype.is_complex]


def _place(tensor: torch.Tensor) -> Any:
    return StorageWeakRef(tensor.untyped_storage()) if tensor.layout is torch.strided else id(tensor)


def cost(name: str, args: Any, made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> int:
    """The roundings of one kernel."""
    if name in EXACT:
        return 0
    real = _real(name, args, made, given)
    short = any(one.dtype.itemsize == 2 for one in made)
    return 3 * real if any(one.dtype.is_complex for one in made) else min(real, 2) if short else real


def _real(name: str, args: Any, made: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> int:
    if name in ARITHMETIC or name.startswith("_foreach_"):
        return 1
    if name in ("mm", "bmm", "mv", "dot"):
        return args[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return args[1].shape[-1] + 1
    if name in ("sum", "mean"):
        return max(1, math.prod(args[0].shape) // max(1, math.prod(made[0].shape)))
    if name in ("cos", "exp", "gelu", "log", "pow", "sigmoid", "sin", "tanh"):
        return 2
    if name in ("sigmoid_backward", "tanh_backward"):
        return 3
    largest = max((max(one.shape, default=1) for one in [*made, *given]), default=1)
    return largest if name in ("index_add", "index_put") else 8 + largest
