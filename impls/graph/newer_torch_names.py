"""Names of ``torch.autograd.graph`` that are handed on as torch has them, and that older releases lack.

Each exists in every release. Where the installed one lacks it, whoever calls it is told which release has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch

__all__ = [
    "FIRST_RELEASES",
    "from_torch",
    "node_creation_hook",
    "region_activation_memory_budget",
    "set_override_stale_capture_stream",
    "set_warn_on_accumulate_grad_stream_mismatch",
]

# The first release that has each name, of those that were installed: 2.11 (2.11 stands for that or an older one) to 2.15.
FIRST_RELEASES: Mapping[str, str] = MappingProxyType(
    {
        "node_creation_hook": "2.14",
        "queue_callback": "2.15",
        "region_activation_memory_budget": "2.13",
        "set_override_stale_capture_stream": "2.13",
        "set_warn_on_accumulate_grad_stream_mismatch": "2.11",
    }
)


def from_torch(name: str) -> Any:
    """The function or class of this name that torch has; where it has none, a function that raises NotImplementedError."""
    found = getattr(torch.autograd.graph, name, None)
    if found is not None:
        return found

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"{name} needs torch {FIRST_RELEASES[name]} or newer, of which autograd has what it takes; this is torch "
            f"{torch.__version__}. Install a newer release, or do without"
        )

    missing.__name__ = missing.__qualname__ = name
    return missing


node_creation_hook = from_torch("node_creation_hook")
region_activation_memory_budget = from_torch("region_activation_memory_budget")
set_override_stale_capture_stream = from_torch("set_override_stale_capture_stream")
set_warn_on_accumulate_grad_stream_mismatch = from_torch("set_warn_on_accumulate_grad_stream_mismatch")
