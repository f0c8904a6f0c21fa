"""Chen et al. 2016: segments of a chain that keep only their inputs, and segments inside segments."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benches.papers.chain import Cost, Layer, Scheme, cost, plain
from benches.papers.paper import Curve, Figure, Paper, Row, exact, trend, unverified
from benches.papers.residual_network import bytes_of, network, operations
from impls import nested, reentrant, schedules

SEGMENTED = ((64, 2), (64, 4), (64, 8), (64, 32), (36, 6), (60, 5))
SIZES = (4, 16, 64, 256)
BATCH = 32


def segmented(checkpoint_sequential: Callable[..., Any], segments: int) -> Scheme:
    """The chain in so many segments, by an implementation's ``checkpoint_sequential``."""

    def run(layers: Sequence[Layer], value: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(list(layers), segments, value)

    return run


def planned(plan: schedules.Plan) -> Scheme:
    """The chain as a plan says."""
    return lambda layers, value: schedules.checkpoint_sequential(list(layers), plan, value)


@functools.cache
def cost_of_plan(make: Callable[[int], schedules.Plan], n: int) -> Cost:
    """A plan of ``n`` layers, executed."""
    return cost(planned(make(n)), n)


def rows() -> Iterator[Row]:
    """Calls, kernels and memory of segments."""
    costs = {(n, k): cost(segmented(nested.checkpoint_sequential, k), n) for n, k in SEGMENTED}
    for (n, k), one in costs.items():
        if one != cost(planned(schedules.uniform(n, k)), n):
            raise RuntimeError(f"the plan of {n} layers in {k} segments does not cost what checkpoint_sequential does")
    which = "(n, k) = " + ", ".join(map(str, SEGMENTED))
    yield exact(
        f"calls: n + n (k - 1) / k; {which}",
        says=tuple(n + n * (k - 1) // k for n, k in SEGMENTED),
        measured=tuple(one.calls for one in costs.values()),
    )
    yield exact(
        f"kernels with early stop: n + (k - 1)(n/k - 1); {which}",
        says=tuple(n + (k - 1) * (n // k - 1) for n, k in SEGMENTED),
        measured=tuple(one.kernels for one in costs.values()),
    )
    yield exact(
        f"units alive after forward: (k - 1) + n/k; {which}",
        says=tuple(k - 1 + n // k for n, k in SEGMENTED),
        measured=tuple(one.alive for one in costs.values()),
    )
    two, eight = costs[64, 2], costs[64, 8]
    yield exact("n = 64, k = 2: calls, alive", says=(96, 33), measured=(two.calls, two.alive))
    yield exact(
        "n = 64, k = 8: calls, kernels, alive, peak",
        says=(120, 113, 15, 17),
        measured=(eight.calls, eight.kernels, eight.alive, eight.peak),
    )
    peak = cost(segmented(reentrant.checkpoint_sequential, 8), 64).peak
    yield exact("n = 64, k = 8, reentrant: peak", says=18, measured=peak)


def more() -> Iterator[Row]:
    """Growth with the root and with the logarithm of the depth, and networks that were reported."""
    roots = {n: cost_of_plan(schedules.sqrt_segments, n) for n in SIZES}
    yield trend(
        "√n segments: memory at most 2√n, one extra forward at most; n = 4, 16, 64, 256",
        says="2√n: 4, 8, 16, 32",
        measured=tuple(one.alive for one in roots.values()),
        note="units alive after forward; calls at most 2n",
        holds=all(one.alive <= 2 * n**0.5 and one.calls <= 2 * n for n, one in roots.items()),
    )
    logs = {n: cost_of_plan(schedules.recursive, n) for n in SIZES}
    yield trend(
        "recursion: O(log n) memory; n = 4, 16, 64, 256",
        says="grows by a constant",
        note="peak, units",
        measured=tuple(one.peak for one in logs.values()),
        holds=_even([one.peak for one in logs.values()]),
    )
    yield trend(
        "recursion: O(n log n) extra forwards",
        says="at most n log2 n: 8, 64, 384, 2048",
        note="extra calls",
        measured=tuple(one.calls - n for n, one in logs.items()),
        holds=all(one.calls - n <= n * (n.bit_length() - 1) for n, one in logs.items()),
    )
    yield from _residual()
    yield unverified(
        "LSTM of 4 layers, 1024 hidden, 50 inputs: over 4 times less memory",
        says="over 4 ×",
        note="the paper's network is not at hand",
    )


def _even(values: list[int]) -> bool:
    return len({after - before for before, after in itertools.pairwise(values)}) == 1


def _residual() -> Iterator[Row]:
    model = network()
    chain = schedules.measure(model, torch.empty(BATCH, 3, 224, 224, device="meta", requires_grad=True))
    plan = schedules.searched(chain)
    before = bytes_of(model, schedules.kept(0, len(model)), BATCH)
    after = bytes_of(model, plan, BATCH)
    yield trend(
        "ResNet of 1000 layers: memory 48 GB → 7 GB",
        says="6.9 × less (48 → 7 GB)",
        holds=before.peak > 48 / 7 * after.peak,
        measured=f"{before.peak / 2**30:.1f} → {after.peak / 2**30:.1f} GiB, {before.peak / after.peak:.1f} × less",
        note=f"activations, counted on the meta device at batch {BATCH} × 224², gradients of weights not; the paper's "
        "batch is unread, and its 7 GB may hold weights; segments as its budget search cuts them",
    )
    extra = operations(model, plan) / operations(model, schedules.kept(0, len(model))) - 1
    yield unverified(
        "about 30 % extra time",
        says="about 30 %",
        measured=f"{100 * extra:+.1f} %",
        note="floating point operations of that network and plan, with gradients of weights, not time",
    )


def figures() -> Iterator[Figure]:
    """Memory against depth."""
    n = tuple(map(float, SIZES))
    kinds = {
        "no checkpointing": [cost(plain, size) for size in SIZES],
        "√n segments": [cost_of_plan(schedules.sqrt_segments, size) for size in SIZES],
        "recursion": [cost_of_plan(schedules.recursive, size) for size in SIZES],
    }
    curves = [Curve("2√n", n, tuple(2 * size**0.5 for size in n), "paper")]
    curves += [Curve(f"{name}, measured", n, tuple(float(one.peak) for one in costs)) for name, costs in kinds.items()]
    yield Figure(
        "chen2016-memory",
        "Segments: peak memory against depth",
        "layers n",
        "peak, units of one layer's output",
        tuple(curves),
        log="xy",
    )


PAPER = Paper(
    "chen2016",
    "Training deep nets with sublinear memory cost",
    "Chen et al. 2016, arXiv 1604.06174",
    "A chain whose layers save exactly their input, run by `checkpoint_sequential` of `impls.nested` and `impls.reentrant` and "
    "by plans of `impls.schedules`: calls, forward kernels and live storages are counted; gradients equal plain's bit for bit. "
    "The caller holds the output and its gradient.",
    rows,
    more,
    figures,
)
