"""PyTorch's checkpoint, compiled: torch.compile with the backend aot_eager around a region that checkpoints inside."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch._dynamo
import torch.utils.checkpoint

from impls.implementation import CAPABILITIES, Implementation

_compiled: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def _region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def _compiled_for(function: Callable[..., Any]) -> Callable[..., Any]:
    """A region for one function. Its code is its own: what is compiled is counted by code, and there is a limit."""
    if function not in _compiled:
        own = FunctionType(_region.__code__.replace(), dict(_region.__globals__))
        _compiled[function] = torch.compile(own, backend="aot_eager")
    return _compiled[function]


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in PyTorch's non-reentrant checkpoint, compiled once for it; the compiler decides what to recompute.

    What the function does besides computing happens in forward alone (skip_fwd_side_effects_in_bwd_under_checkpoint):
    with the option's default, a function that notes anything is not compiled at all. Raises TypeError for what is not
    callable, or cannot be held weakly.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; it must be callable")
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return _compiled_for(function)(function, *args, **kwargs)


IMPLEMENTATION = Implementation(
    name="torch-compile",
    checkpoint=checkpoint,
    summary="torch.compile, backend aot_eager, around a region of torch.utils.checkpoint",
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    capabilities=frozenset(CAPABILITIES) - {"context-fn", "explicit-generators"},
)
