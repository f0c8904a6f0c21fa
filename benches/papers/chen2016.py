"""Chen et al. 2016: segments of a chain that keep only their inputs, and segments inside segments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from benches.papers.models.chain import Cost, Layer, Scheme, cost, plain
from benches.papers.models.residual_network import bytes_of, network, operations
from benches.papers.paper import Claim, Curve, Figure, Found, Paper, Said, derived, shown, trend
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


@functools.cache
def in_segments(n: int, k: int) -> Cost:
    """``n`` layers in ``k`` segments, executed. Raises RuntimeError when the plan of that cut costs something else."""
    one = cost(segmented(nested.checkpoint_sequential, k), n)
    if one != cost(planned(schedules.uniform(n, k)), n):
        raise RuntimeError(f"the plan of {n} layers in {k} segments does not cost what checkpoint_sequential does")
    return one


def _each(field: str) -> tuple[int, ...]:
    return tuple(getattr(in_segments(n, k), field) for n, k in SEGMENTED)


def _by_size(make: Callable[[int], schedules.Plan], measured: Callable[[Cost, int], int]) -> tuple[int, ...]:
    return tuple(measured(cost_of_plan(make, n), n) for n in SIZES)


def claims() -> Iterator[Claim]:
    """Calls, kernels and memory of segments, by their number and with the root and the logarithm of the depth."""
    which = "(n, k) = " + ", ".join(map(str, SEGMENTED))
    yield derived(
        f"calls: n + n (k - 1) / k; {which}",
        says=Said("an extra forward pass", "abstract"),
        expected=tuple(n + n * (k - 1) // k for n, k in SEGMENTED),
        measure=lambda: _each("calls"),
        note="the last segment keeps what it saves",
    )
    yield derived(
        f"kernels with early stop: n + (k - 1)(n/k - 1); {which}",
        expected=tuple(n + (k - 1) * (n // k - 1) for n, k in SEGMENTED),
        measure=lambda: _each("kernels"),
    )
    yield derived(
        f"units alive after forward: (k - 1) + n/k; {which}",
        says=Said("O(n/k) for a segment + O(k) for what lies between segments", "equation 1"),
        expected=tuple(k - 1 + n // k for n, k in SEGMENTED),
        measure=lambda: _each("alive"),
    )
    yield derived("n = 64, k = 2: calls, alive", expected=(96, 33), measure=lambda: _fields(in_segments(64, 2))[::2])
    yield derived(
        "n = 64, k = 8: calls, kernels, alive, peak", expected=(120, 113, 15, 17), measure=lambda: _fields(in_segments(64, 8))
    )
    yield derived(
        "n = 64, k = 8, reentrant: peak",
        expected=18,
        measure=lambda: cost(segmented(reentrant.checkpoint_sequential, 8), 64).peak,
    )
    yield from _growth()


def _fields(one: Cost) -> tuple[int, ...]:
    return one.calls, one.kernels, one.alive, one.peak


def _growth() -> Iterator[Claim]:
    root, log = Said("O(2√n) with k = √n", "section 4.3"), Said("log2 n, with one result stored at each level", "equation 3")
    which = f"n = {', '.join(map(str, SIZES))}"
    roots = tuple(round(n**0.5) for n in SIZES)
    yield derived(
        f"√n segments, units alive after forward: 2√n - 1; {which}",
        says=root,
        expected=tuple(2 * r - 1 for r in roots),
        measure=lambda: _by_size(schedules.sqrt_segments, lambda one, _: one.alive),
    )
    yield derived(
        f"√n segments, peak, in units: 2√n + 1; {which}",
        says=root,
        expected=tuple(2 * r + 1 for r in roots),
        measure=lambda: _by_size(schedules.sqrt_segments, lambda one, _: one.peak),
        note="with the output and its gradient, which the caller holds",
    )
    yield derived(
        f"recursion, peak, in units: log2 n + 3; {which}",
        says=log,
        expected=tuple(n.bit_length() + 2 for n in SIZES),
        measure=lambda: _by_size(schedules.recursive, lambda one, _: one.peak),
    )
    yield derived(
        f"recursion, extra calls: n log2 n / 2; {which}",
        says=Said("O(n log n) more forward computation", "abstract"),
        expected=tuple(n * (n.bit_length() - 1) // 2 for n in SIZES),
        measure=lambda: _by_size(schedules.recursive, lambda one, n: one.calls - n),
    )


def more() -> Iterator[Claim]:
    """Networks of the experiments."""
    yield trend(
        "ResNet of 1000 layers: memory falls at least as much",
        says=Said("from 48G to 7G", "abstract; batch 32 of 3 × 224 × 224: section 5.2"),
        expected="48 / 7 = 6.9 × less",
        measure=_memory,
        note=f"activations, counted on the meta device at batch {BATCH} × 224², gradients of weights not; the segments with "
        "the least peak of those that a budget search finds. The paper's figures are of MXNet's memory plans, and its text "
        "does not say which of them takes 48G",
    )
    yield trend(
        "ResNet of 1000 layers: one extra forward at most, so a third more operations",
        says=Said("backward takes nearly twice as long as forward, and one forward is added", "section 4.3"),
        expected="at most +33.3 %",
        measure=_operations,
        note="floating point operations of that network and plan, with gradients of weights",
    )
    yield shown("ResNet of 1000 layers: 30 % more time", says=Said("30 %, on a Titan X", "section 5.4"))
    yield shown(
        "LSTM of 4 layers, 1024 hidden, batch 64: over 4 times less memory",
        says=Said("more than 4 ×, beside plans that share memory", "section 5.3"),
        note="autograd has no plan that shares memory to compare with",
    )


@functools.cache
def _residual() -> tuple[nn.Sequential, schedules.Plan]:
    """The network, and its segments."""
    model = network()
    chain = schedules.measure(model, torch.empty(BATCH, 3, 224, 224, device="meta", requires_grad=True))
    return model, schedules.searched(chain)


def _memory() -> Found:
    model, plan = _residual()
    before, after = (bytes_of(model, one, BATCH).peak for one in (schedules.kept(0, len(model)), plan))
    value = f"{before / 2**30:.1f} → {after / 2**30:.1f} GiB, {before / after:.1f} × less"
    return Found(value, holds=before >= 48 / 7 * after, figures=(48 / 7, before / after))


def _operations() -> Found:
    model, plan = _residual()
    extra = operations(model, plan) / operations(model, schedules.kept(0, len(model))) - 1
    return Found(f"{100 * extra:+.1f} %", holds=0 < extra <= 1 / 3)


def figures() -> Iterator[Figure]:
    """Memory against depth."""
    n = tuple(map(float, SIZES))
    alive = _by_size(schedules.sqrt_segments, lambda one, _: one.alive)
    peaks = {
        "no checkpointing, peak": tuple(cost(plain, size).peak for size in SIZES),
        "√n segments, peak": _by_size(schedules.sqrt_segments, lambda one, _: one.peak),
        "recursion, peak": _by_size(schedules.recursive, lambda one, _: one.peak),
    }
    curves = [Curve("2√n", n, tuple(2 * size**0.5 for size in n), "formula")]
    curves.append(Curve("√n segments, alive after forward", n, tuple(map(float, alive)), "measured"))
    curves += [Curve(name, n, tuple(map(float, units)), "measured") for name, units in peaks.items()]
    yield Figure(
        "chen2016-memory",
        "Segments and recursion: memory against depth",
        "layers n",
        "units of one layer's output",
        tuple(curves),
        log="xy",
        note="With √n segments, 2√n bounds what is alive after forward; the peak is 2√n + 1.",
    )


PAPER = Paper(
    "chen2016",
    "Training deep nets with sublinear memory cost",
    "Chen et al. 2016, arXiv 1604.06174",
    "A chain whose layers save exactly their input, run by `checkpoint_sequential` of `impls.nested` and `impls.reentrant` and "
    "by plans of `impls.schedules`: calls, forward kernels and live storages are counted; gradients equal plain's bit for bit. "
    "The caller holds the output and its gradient.",
    claims,
    more,
    figures,
)
