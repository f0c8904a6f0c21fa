"""``checkpoint_sequential`` over any implementation: a chain of functions, cut into segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


def sequential(
    checkpoint: Callable[..., Any], functions: Any, segments: int, *inputs: Any, spread: bool = False, **options: Any
) -> Any:
    """Run ``functions`` one after the other, all but the last segment checkpointed, and return the value of the last.

    ``functions`` is an nn.Sequential, nn.ModuleList, list or tuple of n callables, cut into ``segments`` parts of
    n // segments functions; the last part takes the rest and is not checkpointed. The first function gets ``inputs``,
    the others the value of the one before, with ``spread`` the entries of a tuple. ``options`` go to ``checkpoint``.

    Raises TypeError when functions is not such a sequence or segments not an int, ValueError when segments is not
    between 1 and n. Source: Chen et al. 2016 (arXiv 1604.06174).
    """
    if not isinstance(functions, nn.Sequential | nn.ModuleList | list | tuple):
        kind = type(functions).__name__
        raise TypeError(f"functions is of type {kind}; it must be an nn.Sequential, nn.ModuleList, list or tuple")
    chain: tuple[Callable[..., Any], ...] = tuple(functions)  # children() would leave out a module's second occurrence
    for index, function in enumerate(chain):
        if not callable(function):
            raise TypeError(f"functions[{index}] is {function!r}; it must be callable")
    if isinstance(segments, bool) or not isinstance(segments, int):
        raise TypeError(f"segments is {segments!r}; it must be an int")
    if not 1 <= segments <= len(chain):
        raise ValueError(f"segments is {segments}; it must be between 1 and the number of functions, {len(chain)}")
    size = len(chain) // segments
    values = inputs
    for start in range(0, size * (segments - 1), size):
        values = _values(checkpoint(_run(chain[start : start + size], spread), *values, **options), spread)
    return _run(chain[size * (segments - 1) :], spread)(*values)


def _values(value: Any, spread: bool) -> tuple[Any, ...]:
    return value if spread and isinstance(value, tuple) else (value,)


def _run(functions: Sequence[Callable[..., Any]], spread: bool) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        value: Any = None
        for function in functions:
            value = function(*inputs)
            inputs = _values(value, spread)
        return value

    return run
