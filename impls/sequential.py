"""``checkpoint_sequential`` over any implementation: a chain of functions in segments, all but the last checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


def sequential(checkpoint: Callable[..., Any], functions: Any, segments: int, *inputs: Any, **options: Any) -> Any:
    """Run ``functions`` one after the other and return the value of the last.

    ``functions`` is an nn.Sequential, nn.ModuleList, list or tuple of n callables, cut into ``segments`` parts of
    n // segments functions; the last part takes the rest and is not checkpointed. The first function gets ``inputs``,
    the others the value of the one before. ``options`` go to ``checkpoint``.

    Raises TypeError when functions is not such a sequence or segments not an int, ValueError when segments is not
    between 1 and n. Source: Chen et al. 2016 (arXiv 1604.06174).
    """
    if isinstance(functions, nn.Sequential):
        functions = tuple(functions.children())
    if not isinstance(functions, Sequence | nn.ModuleList):
        raise TypeError(f"functions is a {type(functions).__name__}; it must be an nn.Sequential, nn.ModuleList, list or tuple")
    if isinstance(segments, bool) or not isinstance(segments, int):
        raise TypeError(f"segments is {segments!r}; it must be an int")
    if not 1 <= segments <= len(functions):
        raise ValueError(f"segments is {segments}; it must be between 1 and the number of functions, {len(functions)}")
    size = len(functions) // segments
    values = inputs
    for start in range(0, size * (segments - 1), size):
        values = (checkpoint(_chain(functions[start : start + size]), *values, **options),)
    return _chain(functions[size * (segments - 1) :])(*values)


def _chain(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        for function in functions:
            inputs = (function(*inputs),)
        return inputs[0]

    return run
