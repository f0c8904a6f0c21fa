"""PyTorch's selective checkpoint: results of matrix products are saved, everything else is recomputed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from impls.implementation import CAPABILITIES, Implementation

_aten = torch.ops.aten
MATRIX_PRODUCTS = [_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default]
_contexts = functools.partial(create_selective_checkpoint_contexts, MATRIX_PRODUCTS)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in PyTorch's non-reentrant checkpoint with contexts that save results of matrix products.

    Its own ``context_fn`` is this policy: another one is a TypeError.
    """
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=_contexts, **kwargs)


IMPLEMENTATION = Implementation(
    name="torch-selective",
    checkpoint=checkpoint,
    summary="torch.utils.checkpoint with create_selective_checkpoint_contexts, matrix products saved",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.create_selective_checkpoint_contexts",
    capabilities=frozenset(CAPABILITIES) - {"context-fn", "explicit-generators"},
)
