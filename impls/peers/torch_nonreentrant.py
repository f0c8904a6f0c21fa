"""PyTorch's non-reentrant checkpoint, as it is."""

from __future__ import annotations

import functools

import torch.utils.checkpoint

from impls.implementation import CAPABILITIES, Implementation

IMPLEMENTATION = Implementation(
    name="torch-nonreentrant",
    checkpoint=functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False),
    summary="torch.utils.checkpoint with use_reentrant=False",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    capabilities=frozenset(CAPABILITIES) - {"explicit-generators"},
)
