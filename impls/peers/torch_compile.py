"""PyTorch's checkpoint, compiled: torch.compile with the backend aot_eager around a region that checkpoints inside."""

from __future__ import annotations

import contextlib
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


def _compile() -> Callable[..., Any]:
    """A region compiled by itself: recompilations are counted by code object, and beyond a limit nothing is compiled."""
    own = FunctionType(_region.__code__.replace(), _region.__globals__)
    return torch.compile(own, backend="aot_eager")


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in PyTorch's non-reentrant checkpoint, compiled once for it; the compiler decides what to recompute.

    What the function does besides computing happens in forward alone (skip_fwd_side_effects_in_bwd_under_checkpoint):
    with the option's default, a function that notes anything is not compiled at all.
    """
    try:
        region = _compiled[function]
    except (KeyError, TypeError):  # what cannot be held weakly is compiled for each call
        region = _compile()
        with contextlib.suppress(TypeError):
            _compiled[function] = region
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return region(function, *args, **kwargs)


IMPLEMENTATION = Implementation(
    name="torch-compile",
    checkpoint=checkpoint,
    summary="torch.compile, backend aot_eager, around a region of torch.utils.checkpoint",
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    capabilities=frozenset(CAPABILITIES) - {"context-fn", "explicit-generators"},
)
