"""Megatron Core's checkpoint (tensor parallel, without distributing what it saves), as it is. It computes on CUDA alone.

Needs megatron-core 0.16.1 and a CUDA device; ``--impl megatron-core --device cuda``. Without CUDA every law is refused
with an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel import random

from impls.implementation import Implementation


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` in Megatron Core's checkpoint. Raises RuntimeError without CUDA, where its random numbers are."""
    if not torch.cuda.is_available():
        raise RuntimeError(
            "Megatron Core's checkpoint restores the random numbers of CUDA; there is no CUDA: use --device cuda"
        )
    return random.checkpoint(function, False, *args)


# Never run so far: no machine with CUDA was at hand. So nothing is declared in known, and a run will show what it breaks;
# it is a node with a backward of its own, so expect of it what impls.known_failures.SINGLE_NODE lists.
IMPLEMENTATION = Implementation(
    name="megatron-core",
    checkpoint=checkpoint,
    summary="megatron.core.tensor_parallel.checkpoint (0.16.1)",
    source="https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/core/tensor_parallel.html",
    capabilities=frozenset({"hidden-saves", "nesting", "recomputes", "rng"}),
)
