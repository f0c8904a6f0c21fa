"""No checkpointing: the function is called and autograd keeps what it saves. Every law compares with this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from impls.implementation import CAPABILITIES, Implementation


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function(*args, **kwargs)`` and return its value."""
    return function(*args, **kwargs)


IMPLEMENTATION = Implementation(
    name="plain",
    checkpoint=checkpoint,
    summary="no checkpointing: autograd keeps everything",
    source="torch.autograd",
    capabilities=frozenset(CAPABILITIES)
    - {"recomputes", "hidden-saves", "early-stop", "early-stop-option", "rng-option", "context-fn", "determinism-check"},
)
