"""PyTorch's reentrant checkpoint, as it is."""

from __future__ import annotations

import functools

import torch.utils.checkpoint

from impls.implementation import Implementation

IMPLEMENTATION = Implementation(
    name="torch-reentrant",
    checkpoint=functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=True),
    summary="torch.utils.checkpoint with use_reentrant=True",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    capabilities=frozenset({"autocast", "early-stop-option", "hidden-saves", "non-tensor-arguments", "recomputes", "rng", "rng-option"}),
)
