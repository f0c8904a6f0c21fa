"""PyTorch's checkpoint, compiled: torch.compile with the backend aot_eager around a region that checkpoints inside."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch._dynamo
import torch.utils.checkpoint

from impls.implementation import CAPABILITIES, Implementation


def _region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def _compiled() -> Callable[..., Any]:
    """The region, compiled by itself: what is compiled is kept with the code, and counted by it up to a limit."""
    return torch.compile(FunctionType(_region.__code__.replace(), dict(_region.__globals__)), backend="aot_eager")


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in PyTorch's non-reentrant checkpoint, compiled anew; the compiler decides what to recompute.

    What the function does besides computing happens in forward alone (skip_fwd_side_effects_in_bwd_under_checkpoint):
    with the option's default, a function that notes anything is not compiled at all. Raises TypeError for what is not
    callable.
    """
    if torch.compiler.is_compiling():
        return _region(function, *args, **kwargs)  # a region inside belongs to what is being compiled
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return _compiled()(function, *args, **kwargs)


IMPLEMENTATION = Implementation(
    name="torch-compile",
    checkpoint=checkpoint,
    summary="torch.compile, backend aot_eager, around a region of torch.utils.checkpoint",
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    capabilities=frozenset(CAPABILITIES) - {"context-fn", "explicit-generators"},
)
