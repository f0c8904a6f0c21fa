"""Griewank & Walther 2000: Revolve, the schedule of least recomputation for a given number of checkpoints."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from benches.papers import peer_schedules
from benches.papers.chen2016 import planned
from benches.papers.meters.live import Live
from benches.papers.models.chain import Cost, Layer, cost
from benches.papers.paper import Claim, Curve, Figure, Found, Paper, Said, derived, exact, shown, trend
from impls import nested
from impls.schedules import execute, revolve

CODE = "numforw in the authors' revolve.cpp"
ADVANCES = Said("r l - C(s + r, s) r / (s + 1) forward steps without recording, r the least with C(s + r, s) ≥ l", CODE)
STEPS = {(10, 2): 30, (10, 3): 25, (20, 4): 59, (64, 6): 220, (100, 9): 334, (1000, 8): 5285}
REPEATS = (2, 3), (3, 3), (4, 2), (3, 5), (6, 2)


def closed_form(length: int, snapshots: int) -> int:
    """All forward steps by the paper's formula: l + r l - β(s + 1, r - 1)."""
    repeats = next(r for r in range(length + 1) if math.comb(snapshots + r, snapshots) >= length)
    less = math.comb(snapshots + repeats, snapshots + 1) if repeats else 0
    return length + repeats * length - less


@functools.cache
def least(length: int, snapshots: int) -> int:
    """The least number of plain advances, by the dynamic program."""
    if length == 1:
        return 0
    if snapshots == 1:
        return length * (length - 1) // 2
    return min(i + least(i, snapshots) + least(length - i, snapshots - 1) for i in range(1, length))


class _Stored(Live):
    """Counts the inputs of regions that are alive whenever a layer's backward runs, and calls by layer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.inputs: dict[int, StorageWeakRef] = {}
        self.most = 0
        self.calls = [0] * length

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.softplus_backward.default:
            self.most = max(self.most, sum(not one.expired() for one in self.inputs.values()))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def layer(self, index: int) -> Layer:
        def call(value: torch.Tensor) -> torch.Tensor:
            self.calls[index] += 1
            return functional.softplus(value)

        return call

    def region(self, body: Callable[[list[Any]], Any], box: list[Any]) -> Any:
        storage = box[0].untyped_storage()
        self.inputs[storage._cdata] = StorageWeakRef(storage)
        return nested.checkpoint(body, box)


def stored(length: int, snapshots: int) -> tuple[int, int]:
    """The most checkpoints at once, and the most that a layer ran beyond the run before its backward, both executed."""
    start = torch.linspace(-1, 1, 8, dtype=torch.float64).requires_grad_()
    with _Stored(length) as counts:
        assert isinstance(counts, _Stored)
        layers = [counts.layer(index) for index in range(length)]
        execute(layers, revolve(length, snapshots), start, counts.region).sum().backward()
    return counts.most, max(counts.calls) - 1


@functools.cache
def executed(length: int, snapshots: int) -> Cost:
    """The schedule run as nested regions on a chain of layers."""
    return cost(planned(revolve(length, snapshots)), length)


def claims() -> Iterator[Claim]:
    """Forward steps by execution, by formula and by dynamic program, and the most checkpoints."""
    for (length, snapshots), expected in STEPS.items():
        yield exact(
            f"(l, s) = ({length}, {snapshots}): all forward steps",
            says=ADVANCES,
            expected=expected,
            measure=functools.partial(_executed, length, snapshots),
        )
    yield derived(
        "closed form l + r l - β(s + 1, r - 1); the same (l, s)",
        says=ADVANCES,
        expected=tuple(STEPS.values()),
        measure=lambda: tuple(closed_form(*one) for one in STEPS),
        note="β(s, t) = C(s + t, s)",
    )
    small = [one for one in STEPS if one[0] <= 100]
    yield derived(
        "dynamic program; l up to 100",
        expected=tuple(STEPS[one] for one in small),
        measure=lambda: tuple(length + least(length, snapshots) for length, snapshots in small),
    )
    yield derived(
        "most checkpoints at once: s",
        expected=tuple(snapshots for _, snapshots in STEPS),
        measure=lambda: tuple(stored(*one)[0] for one in STEPS),
        note="inputs of regions, the chain's own among them, that are alive when a layer's backward runs",
    )
    yield _longest()
    yield derived(
        "executed, the peak is s and a constant, whatever the length: s + 4 units",
        expected=tuple(snapshots + 4 for _, snapshots in STEPS),
        measure=lambda: tuple(executed(*one).peak for one in STEPS),
        note="s - 1 checkpoints beside the chain's own input, the layers at work, output and loss gradient",
    )


def _executed(length: int, snapshots: int) -> Found:
    one = executed(length, snapshots)
    return Found(one.calls, f"calls; with early stop {one.kernels} kernels")


def _longest() -> Claim:
    longest = [math.comb(s + t, s) for s, t in REPEATS]

    def measure() -> tuple[tuple[int, int], ...]:
        lengths = zip(longest, REPEATS, strict=True)
        return tuple((stored(length, s)[1], stored(length + 1, s)[1]) for length, (s, _) in lengths)

    return exact(
        f"a chain of β(s, t) is reversed with no step advanced over t times, a longer one is not; (s, t) = "
        f"{', '.join(map(str, REPEATS))}",
        says=Said("s checkpoints and t repetitions reach over C(s + t, s) steps", CODE),
        expected=tuple((t, t + 1) for _, t in REPEATS),
        measure=measure,
        note=f"most runs of a layer, the last one not counted; lengths {', '.join(map(str, longest))} and one more",
    )


def more() -> Iterator[Claim]:
    """The same from other tools."""
    steps = tuple(STEPS.values())
    if peer_schedules.version("checkpoint-schedules") == peer_schedules.MISSING:
        yield shown("checkpoint-schedules: the same forward steps", expected=steps)
    else:
        yield from _scheduled(steps)
    if peer_schedules.version("pyrevolve") == peer_schedules.MISSING:
        yield shown("pyrevolve: the same forward steps", expected=steps)
    else:
        yield derived(
            f"pyrevolve {peer_schedules.version('pyrevolve')}: the same forward steps",
            expected=steps,
            measure=lambda: tuple(peer_schedules.pyrevolve(*one) for one in STEPS),
        )


def _scheduled(steps: tuple[int, ...]) -> Iterator[Claim]:
    tool = f"checkpoint-schedules {peer_schedules.version('checkpoint-schedules')}"
    for name in ("Revolve", "Multistage"):
        yield derived(f"{tool}, {name}: the same forward steps", expected=steps, measure=functools.partial(_theirs, name))
    yield trend(
        f"{tool}, Mixed: fewer",
        expected=f"fewer than {', '.join(map(str, steps))}",
        measure=_mixed,
        note="a checkpoint may there hold what a step saves for backward instead of its input",
    )


def _theirs(name: str) -> tuple[int, ...]:
    return tuple(peer_schedules.checkpoint_schedules(*one)[name] for one in STEPS)


def _mixed() -> Found:
    found = _theirs("Mixed")
    return Found(found, holds=all(a < b for a, b in zip(found, STEPS.values(), strict=True)))


def figures() -> Iterator[Figure]:
    """Forward steps against checkpoints."""
    length, snapshots = 64, tuple(range(2, 17))
    x = tuple(map(float, snapshots))
    ran = [executed(length, s) for s in snapshots]
    curves = [
        Curve("l + t(l, s)", x, tuple(closed_form(length, s) / length for s in snapshots), "formula"),
        Curve("calls", x, tuple(one.calls / length for one in ran), "measured"),
        Curve("kernels with early stop", x, tuple(one.kernels / length for one in ran), "measured"),
    ]
    if peer_schedules.version("checkpoint-schedules") != peer_schedules.MISSING:
        mixed = tuple(peer_schedules.checkpoint_schedules(length, s)["Mixed"] / length for s in snapshots)
        curves.append(Curve("Mixed of checkpoint-schedules", x, mixed, "computed"))
    title = "Revolve on a chain of 64 layers: work against memory"
    yield Figure("griewank2000", title, "checkpoints s", "forward steps per layer", tuple(curves))


PAPER = Paper(
    "griewank2000",
    "Revolve",
    "Griewank & Walther 2000, Algorithm 799, doi 10.1145/347837.347846",
    "The schedule as a tree of nested regions (`impls.schedules.revolve`) on a chain whose layers save exactly their input: "
    "calls of the layers are counted while forward and backward run; gradients equal plain's bit for bit.",
    claims,
    more,
    figures,
)
