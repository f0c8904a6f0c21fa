"""Programs about the operators of torch, each called with a sample of its arguments from PyTorch's own database."""

from __future__ import annotations

from typing import Any

import torch


def called(checkpoint: Any, note: Any, device: str, *, operator: str, dtype: str, sample: int, place: str, outputs: Any,
           writes: bool) -> None:  # fmt: skip
    import random
    from itertools import islice

    import numpy  # noqa: ICN001 - as it is printed
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

    random.seed(0)
    numpy.random.seed(0)
    entry = next(one for one in op_db if one.full_name == operator)
    drawn = next(islice(entry.sample_inputs_func(entry, device, getattr(torch, dtype), True), sample, None))
    parts, structure = tree_flatten((drawn.input, drawn.args, drawn.kwargs))
    parts = [part.detach().requires_grad_(part.requires_grad) if torch.is_tensor(part) else part for part in parts]
    leaves = [part for part in parts if torch.is_tensor(part)]
    note("leaves", leaves)
    if place == "alone":
        given, args, kwargs = tree_unflatten(parts, structure)
        result = checkpoint(entry.op, given, *args, **kwargs)
    else:
        def f(*tensors):
            if place == "last":
                tensors = [t * torch.ones_like(t) if t.is_floating_point() or t.is_complex() else t for t in tensors]
            left = iter(tensors)
            given, args, kwargs = tree_unflatten([next(left) if torch.is_tensor(one) else one for one in parts], structure)
            found = tree_leaves(entry.op(given, *args, **kwargs))
            kept = [found[index] * found[index] if place == "first" else found[index] for index in outputs]
            return tuple(kept) if kept[1:] else kept[0]

        result = checkpoint(f, *leaves)
    note("forward", result)
    ys = [tree_leaves(result)[index] for index in outputs] if place == "alone" else tree_leaves(result)
    torch.autograd.backward(ys, [torch.linspace(0.5, 1.5, y.numel(), device=device).reshape(y.shape).to(y.dtype) for y in ys])
    note("gradients 0", [leaf.grad for leaf in leaves if leaf.requires_grad])
    if not writes:
        note("arguments", [leaf.detach() for leaf in leaves])
