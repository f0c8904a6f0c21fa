"""Nested checkpointing: binary regions down to single layers, with and without early stop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benches.papers.chain import Cost, Layer, Scheme, cost
from benches.papers.paper import Curve, Figure, Paper, Row, exact
from impls import nested, reentrant

Checkpoint = Callable[..., Any]
SIZES = (2, 4, 8, 16, 32, 64)
WITHOUT_STOP: Checkpoint = functools.partial(nested.checkpoint, early_stop=False)


def halves(checkpoint: Checkpoint, *, right: bool = True) -> Scheme:
    """Regions that are cut in two down to single layers, the outermost plain; ``right`` says if right halves are regions."""

    def run(layers: Sequence[Layer], value: torch.Tensor) -> torch.Tensor:
        if len(layers) == 1:
            return layers[0](value)
        middle = len(layers) // 2
        value = checkpoint(functools.partial(run, layers[:middle]), value)
        rest = functools.partial(run, layers[middle:])
        return checkpoint(rest, value) if right else rest(value)

    return run


def _log(n: int) -> int:
    return n.bit_length() - 1


def _both(n: int) -> dict[str, Cost]:
    return {
        "no early stop": cost(halves(WITHOUT_STOP), n),
        "early stop": cost(halves(nested.checkpoint), n),
        "reentrant": cost(halves(reentrant.checkpoint), n),
    }


def rows() -> Iterator[Row]:
    """Both halves checkpointed at every size, then the left half alone."""
    costs = {n: _both(n) for n in SIZES}

    def claim(text: str, formula: Callable[[int], int], measured: Callable[[dict[str, Cost]], int], note: str = "") -> Row:
        return exact(
            f"{text}; n = {', '.join(map(str, SIZES))}",
            says=tuple(map(formula, SIZES)),
            measured=tuple(measured(costs[n]) for n in SIZES),
            note=note,
        )

    yield claim("calls, no early stop: n (log2 n + 1)", lambda n: n * (_log(n) + 1), lambda c: c["no early stop"].calls)
    yield claim("calls, early stop: n (log2 n / 2 + 3/2)", lambda n: n * (_log(n) + 3) // 2, lambda c: c["early stop"].calls)
    yield claim("kernels, early stop: n (log2 n + 1) / 2", lambda n: n * (_log(n) + 1) // 2, lambda c: c["early stop"].kernels)
    whole = "storages that operators made, and the chain's input"
    yield claim("peak, non-reentrant: log2 n + 4 units", lambda n: _log(n) + 4, lambda c: c["early stop"].peak + 1, whole)
    yield claim("peak, reentrant: 2 log2 n + 4 units", lambda n: 2 * _log(n) + 4, lambda c: c["reentrant"].peak + 1, whole)
    left = {n: (cost(halves(WITHOUT_STOP, right=False), n), cost(halves(nested.checkpoint, right=False), n)) for n in SIZES}
    yield exact(
        "left half only, calls: n (log2 n / 2 + 1)",
        says=tuple(n * (_log(n) + 2) // 2 for n in SIZES),
        measured=tuple(left[n][0].calls for n in SIZES),
    )
    yield exact(
        "left half only, kernels with early stop: n/2 log2 n + 1",
        says=tuple(n * _log(n) // 2 + 1 for n in SIZES),
        measured=tuple(left[n][1].kernels for n in SIZES),
    )


def figures() -> Iterator[Figure]:
    """Memory and work against depth."""
    costs = {n: _both(n) for n in SIZES}
    depth = tuple(map(float, SIZES))
    memory = [
        Curve("2 log2 n + 4", depth, tuple(2.0 * _log(n) + 4 for n in SIZES), "paper"),
        Curve("log2 n + 4", depth, tuple(_log(n) + 4.0 for n in SIZES), "paper"),
        Curve("reentrant, measured", depth, tuple(costs[n]["reentrant"].peak + 1.0 for n in SIZES)),
        Curve("non-reentrant, measured", depth, tuple(costs[n]["early stop"].peak + 1.0 for n in SIZES)),
    ]
    title = "Binary nesting: peak memory against depth"
    yield Figure("nested90105-memory", title, "layers n", "peak, units of one layer's output", tuple(memory), log="x")
    work = [
        Curve("n (log2 n + 1) calls", depth, tuple(float(n * (_log(n) + 1)) for n in SIZES), "paper"),
        Curve("n (log2 n + 1) / 2 kernels", depth, tuple(n * (_log(n) + 1) / 2 for n in SIZES), "paper"),
        Curve("calls, no early stop", depth, tuple(float(costs[n]["no early stop"].calls) for n in SIZES)),
        Curve("kernels, early stop", depth, tuple(float(costs[n]["early stop"].kernels) for n in SIZES)),
    ]
    title = "Binary nesting: forward work against depth"
    yield Figure("nested90105-work", title, "layers n", "forward calls or kernels", tuple(work), log="xy")


PAPER = Paper(
    "nested90105",
    "Nested checkpointing",
    "PyTorch pull requests 90105 and 96866",
    "A chain whose layers save exactly their input, run by `impls.nested` and `impls.reentrant`: calls of the layers, forward "
    "kernels and live storages are counted during forward and backward; gradients equal plain's bit for bit.",
    rows,
    figures=figures,
)
