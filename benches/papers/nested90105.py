"""Nested checkpointing: binary regions down to single layers, with and without early stop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benches.papers.models.chain import Layer, Scheme, cost
from benches.papers.paper import Claim, Curve, Figure, Paper, Said, derived
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


NO_STOP, STOP = halves(WITHOUT_STOP), halves(nested.checkpoint)
LEFT, LEFT_STOP = halves(WITHOUT_STOP, right=False), halves(nested.checkpoint, right=False)
REENTRANT = halves(reentrant.checkpoint)
_cost = functools.cache(cost)
WRAPS = Said("what recomputes a saved tensor recomputes every region around it", "NOTE [ Nestable Checkpoint ], implication")
STOPS = Said("recomputation stops once what is needed is there", "NOTE [ Nestable Checkpoint ], rule 5; pull request 96866")


def claims() -> Iterator[Claim]:
    """Both halves checkpointed at every size, then the left half alone."""
    whole = "storages that operators made, and the chain's input"
    yield _claim("calls, no early stop: n (log2 n + 1)", lambda n: n * (_log(n) + 1), NO_STOP, "calls", says=WRAPS)
    yield _claim("calls, early stop: n (log2 n / 2 + 3/2)", lambda n: n * (_log(n) + 3) // 2, STOP, "calls", says=STOPS)
    yield _claim("kernels, early stop: n (log2 n + 1) / 2", lambda n: n * (_log(n) + 1) // 2, STOP, "kernels", says=STOPS)
    yield _claim("peak, non-reentrant: log2 n + 4 units", lambda n: _log(n) + 4, STOP, "peak", more=1, note=whole)
    yield _claim("peak, reentrant: 2 log2 n + 4 units", lambda n: 2 * _log(n) + 4, REENTRANT, "peak", more=1, note=whole)
    yield _claim("left half only, calls: n (log2 n / 2 + 1)", lambda n: n * (_log(n) + 2) // 2, LEFT, "calls", says=WRAPS)
    yield _claim(
        "left half only, kernels with early stop: n/2 log2 n + 1",
        lambda n: n * _log(n) // 2 + 1,
        LEFT_STOP,
        "kernels",
        says=STOPS,
    )


def _claim(
    text: str,
    formula: Callable[[int], int],
    scheme: Scheme,
    field: str,
    *,
    says: Said | None = None,
    more: int = 0,
    note: str = "",
) -> Claim:
    """A formula of ours against a field of the scheme's cost, with ``more`` units that operators did not make."""
    return derived(
        f"{text}; n = {', '.join(map(str, SIZES))}",
        says=says,
        expected=tuple(map(formula, SIZES)),
        measure=lambda: tuple(getattr(_cost(scheme, n), field) + more for n in SIZES),
        note=note,
    )


def figures() -> Iterator[Figure]:
    """Memory and work against depth."""
    depth = tuple(map(float, SIZES))

    def measured(label: str, scheme: Scheme, field: str, more: int = 0) -> Curve:
        return Curve(label, depth, tuple(float(getattr(_cost(scheme, n), field) + more) for n in SIZES), "measured")

    memory = (
        Curve("2 log2 n + 4", depth, tuple(2.0 * _log(n) + 4 for n in SIZES), "formula"),
        Curve("log2 n + 4", depth, tuple(_log(n) + 4.0 for n in SIZES), "formula"),
        measured("reentrant", REENTRANT, "peak", 1),
        measured("non-reentrant", STOP, "peak", 1),
    )
    title = "Binary nesting: peak memory against depth"
    yield Figure("nested90105-memory", title, "layers n", "peak, units of one layer's output", memory, log="x")
    work = (
        Curve("n (log2 n + 1) calls", depth, tuple(float(n * (_log(n) + 1)) for n in SIZES), "formula"),
        Curve("n (log2 n + 1) / 2 kernels", depth, tuple(n * (_log(n) + 1) / 2 for n in SIZES), "formula"),
        measured("calls, no early stop", NO_STOP, "calls"),
        measured("kernels, early stop", STOP, "kernels"),
    )
    title = "Binary nesting: forward work against depth"
    yield Figure("nested90105-work", title, "layers n", "forward calls or kernels", work, log="xy")


PAPER = Paper(
    "nested90105",
    "Nested checkpointing",
    "PyTorch pull requests 90105 and 96866, and the NOTE in torch/utils/checkpoint.py",
    "A chain whose layers save exactly their input, run by `impls.nested` and `impls.reentrant`: calls of the layers, forward "
    "kernels and live storages are counted during forward and backward; gradients equal plain's bit for bit.",
    claims,
    figures=figures,
)
