"""The figures of what the nested checkpoint costs beside PyTorch's, each with its limit."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from benches.overhead.chain import LENGTHS, Checkpoint, chain, regions, rounds_of, theirs
from benches.rounds import Times, interleaved
from impls.nested import checkpoint

RATIOS = dict(zip(LENGTHS, (0.28, 0.30, 0.33, 0.35), strict=True))
TENSORS = 10, 100, 1000, 10_000, 100_000
ROW = 10, 100, 1000, 10_000
PER_ROUND = 10_000  # saved tensors that a size makes in a round, about; a region takes as long as ten of them
BOTH: dict[str, Checkpoint] = {"ours": checkpoint, "torch": theirs}


@dataclass(frozen=True)
class Reading:
    """One figure and its limit.

    ``ours`` and ``torch`` are in ``unit``, and count from ``floor``, the work that is done without a checkpoint, too; None
    where there is no such thing. ``detail`` says what else the figure is made of.
    """

    name: str
    value: float
    limit: float
    detail: str = ""
    unit: str = ""
    ours: float | None = None
    torch: float | None = None
    floor: float | None = None

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def overhead(scale: float) -> Iterator[Reading]:
    """The overhead ratio by number of saved tensors, and under no_grad, where plain stands in for replay."""
    for length, limit in RATIOS.items():
        rounds, calls = rounds_of(length, scale)
        yield compared(f"{length} saved", interleaved(regions(length, BOTH), rounds=rounds, calls=calls), limit)
    function, x = chain(1), torch.ones(4)
    with torch.no_grad():
        plain = {"replay": lambda: function(x), "ours": lambda: checkpoint(function, x), "torch": lambda: theirs(function, x)}
        yield compared("no_grad", interleaved(plain, rounds=max(3, int(scale * 200)), calls=40), 0.2)


def compared(of: str, times: Times, limit: float) -> Reading:
    """The ratio of what ours adds to replay to what PyTorch's adds."""
    floor, ours, other = (1e6 * times.median(name) for name in ("replay", "ours", "torch"))
    low, high = times.spread("ours", "torch", "replay")
    detail = f"half of the rounds in {low:.2f} to {high:.2f}"
    ratio = times.ratio("ours", "torch", "replay")
    return Reading(f"overhead ratio, {of}", ratio, limit, detail, "µs", ours - floor, other - floor, floor)


def memory(length: int = 1000) -> Iterator[Reading]:
    """Bytes that Python has allocated for a saved tensor once forward is over, as tracemalloc counts them."""
    function, x = chain(length), torch.ones(4, requires_grad=True)

    def taken(implementation: Checkpoint) -> float:
        implementation(function, x)  # what is made once only
        gc.collect()
        with _traced() as allocated:
            y = implementation(function, x)
            found = allocated() / length
        del y
        return found

    ours, other = taken(checkpoint), taken(theirs)
    yield Reading("Python memory per saved tensor", ours / other, 0.5, f"in a region of {length}", "bytes", ours, other)


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the bytes that Python has allocated since."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def growth(scale: float) -> Iterator[Reading]:
    """What must not grow: time per saved tensor and per region, by their number; a graph that is kept; frames by depth.

    Times are taken again without Python's garbage collector, which goes through all objects there are from time to time.
    """
    for kind, context in (("", nullcontext()), (", garbage collector off", _uncollected())):
        with context:
            yield flat(f"time per further saved tensor{kind}", TENSORS, further(scale))
            yield flat(f"time per region in a row{kind}", ROW, in_a_row(scale))
    yield from retained(1000)
    yield depth()


Series = dict[str, list[float]]


def further(scale: float) -> Series:
    """Seconds for a saved tensor beyond the second in a region: a region that recomputes only one takes a shortcut."""
    found = added([(2, 1), *((length, 1) for length in TENSORS)], scale)
    lengths = list(enumerate(TENSORS, 1))
    return {name: [(times[place] - times[0]) / (length - 2) for place, length in lengths] for name, times in found.items()}


def in_a_row(scale: float) -> Series:
    """Seconds for a region of one saved tensor."""
    found = added([(1, count) for count in ROW], scale)
    return {name: [one / count for count, one in zip(ROW, times, strict=True)] for name, times in found.items()}


def added(shapes: Sequence[tuple[int, int]], scale: float) -> Series:
    """Seconds that ours and PyTorch's add to replay for each (saved tensors of a region, regions in a row), interleaved.

    The least of all rounds counts, since disturbances only add time, and small differences are computed from it.
    """
    timed: dict[str, Callable[[], None]] = {}
    repeats = {shape: max(1, PER_ROUND // ((shape[0] + 10) * shape[1])) for shape in shapes}
    for shape, count in repeats.items():
        for name, run in regions(shape[0], BOTH, shape[1]).items():
            timed[f"{name} {shape}"] = _repeated(run, count)
    times = interleaved(timed, rounds=max(2, int(scale * 7)), calls=1, warm=1)
    return {
        name: [(times.least(f"{name} {shape}") - times.least(f"replay {shape}")) / count for shape, count in repeats.items()]
        for name in BOTH
    }


def _repeated(run: Callable[[], None], count: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(count):
            run()

    return repeated


@contextmanager
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def flat(name: str, counts: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> Reading:
    """The largest of our times by the smallest, whichever of the counts they are of; PyTorch's beside them."""
    ours, other = (
        ", ".join(f"{1e6 * one:.2f} µs at {count:,}" for count, one in zip(counts, seconds[of], strict=True)) for of in BOTH
    )
    detail = f"{ours}; PyTorch's {max(seconds['torch']) / min(seconds['torch']):.2f}, {other}"
    return Reading(f"{name}, largest / smallest", max(seconds["ours"]) / min(seconds["ours"]), 1.2, detail)


def retained(passes: int) -> Iterator[Reading]:
    """Time of a backward over a graph that has had many, beside one that has had few; and Python memory that each leaves."""
    old, young = _retaining(), _retaining()
    for _ in range(passes):
        old()
    times = interleaved({"old": old, "young": young}, rounds=passes // 10, calls=1)
    after, first = times.median("old"), times.median("young")
    detail = f"medians of {1e6 * after:.0f} and {1e6 * first:.0f} µs, where the first has {passes} passes behind it"
    yield Reading("a retained backward, late / early", after / first, 1.2, detail)
    with _traced() as allocated:
        old()  # what is made once only
        gc.collect()
        before = allocated()
        for _ in range(passes):
            old()
        gc.collect()
        left = allocated() - before
    yield Reading("bytes of Python that a retained backward leaves", left / passes, 1.0, f"{left} after {passes} passes")


def _retaining() -> Callable[[], None]:
    y, ones = checkpoint(chain(10), torch.ones(4, requires_grad=True)), torch.ones(4)

    def backward() -> None:
        y.backward(ones, retain_graph=True)

    return backward


def depth() -> Reading:
    """How deep regions nest before Python's recursion limit: 200 levels in forward are the limit to reach.

    It bounds backward, too: a region's inputs are unpacked before it runs again, which first runs its parent again, and so
    every level adds the frames of an unpacking and of a recomputation to those of the one below it.
    """
    deepest = _deepest(lambda levels: _survives(levels, backward=False))
    most = _deepest(lambda levels: _survives(levels, backward=True))
    per_level = [(high - low) / 20 for low, high in zip(_frames(20), _frames(40), strict=True)]
    detail = (
        f"{deepest} in forward and {most} in backward, of which each level takes {per_level[0]:.0f} and {per_level[1]:.0f} "
        f"frames of Python; its recursion limit, here {sys.getrecursionlimit()}, bounds both"
    )
    return Reading("200 nested regions / deepest in forward", 200 / deepest, 1.0, detail)


def _nested(levels: int, x: torch.Tensor, note: Callable[[], object]) -> torch.Tensor:
    note()
    return checkpoint(_nested, levels - 1, x.sin(), note) if levels else x.cos()


def _survives(levels: int, *, backward: bool) -> bool:
    try:
        y = _nested(levels, torch.ones(2, requires_grad=True), int)
        if backward:
            y.sum().backward()
    except RecursionError:
        return False
    return True


def _deepest(survives: Callable[[int], bool]) -> int:
    low, high = 1, sys.getrecursionlimit()
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if survives(middle) else (low, middle)
    return low


def _frames(levels: int) -> tuple[int, int]:
    """The most frames of Python under a call of the function, in forward and in backward."""
    most = 0

    def note() -> None:
        nonlocal most
        count, frame = 0, sys._getframe()
        while frame.f_back is not None:
            count, frame = count + 1, frame.f_back
        most = max(most, count)

    y = _nested(levels, torch.ones(2, requires_grad=True), note)
    forward, most = most, 0
    y.sum().backward()
    return forward, most
