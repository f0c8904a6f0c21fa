"""The figures of what our checkpoints cost beside PyTorch's, each with its limit."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from benches.overhead import host_memory
from benches.overhead.chain import LENGTHS, Checkpoint, chain, regions, rounds_of, theirs
from benches.rounds import Times, interleaved

TENSORS = 10, 100, 1000, 10_000, 100_000
ROW = 10, 100, 1000, 10_000
PER_ROUND = 10_000  # saved tensors that a size makes in a round, about; a region takes as long as ten of them
Checkpoints = Mapping[str, Checkpoint]  # ours, by name
Series = dict[str, list[float]]  # by checkpoint, PyTorch's as "torch" among them


@dataclass(frozen=True)
class Limits:
    """The most that a checkpoint of ours may take, as a share of what PyTorch's takes.

    ``ratios`` are of the overhead by number of saved tensors; ``deep`` is how many levels have to fit into ``recursion_limit``.
    """

    ratios: tuple[float, float, float, float]
    no_grad: float
    python_memory: float | None
    host_memory: float | None
    deep: int
    recursion_limit: int


LIMITS = {
    "nested": Limits((0.28, 0.30, 0.33, 0.35), 0.20, python_memory=0.5, host_memory=None, deep=200, recursion_limit=1000),
    # Python does not see what C++ allocates. A level takes three frames, one of them the user's; 100 are below the first.
    "native": Limits((0.20, 0.15, 0.13, 0.15), 0.05, python_memory=None, host_memory=0.2, deep=2000, recursion_limit=6100),
}


@dataclass(frozen=True)
class Reading:
    """One figure of a checkpoint of ours, and its limit, None for a figure that has none.

    ``ours`` and ``torch`` are in ``unit``, and count from ``floor``, the work that is done without a checkpoint, too; None
    where there is no such thing. ``detail`` says what else the figure is made of.
    """

    checkpoint: str
    name: str
    value: float
    limit: float | None
    detail: str = ""
    unit: str = ""
    ours: float | None = None
    torch: float | None = None
    floor: float | None = None

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value <= self.limit


def overhead(checkpoints: Checkpoints, scale: float) -> Iterator[Reading]:
    """The overhead ratio by number of saved tensors, and under no_grad, where plain stands in for replay.

    All of our ``checkpoints`` and PyTorch's are timed in the same rounds.
    """
    for place, length in enumerate(LENGTHS):
        rounds, calls = rounds_of(length, scale)
        times = interleaved(regions(length, {**checkpoints, "torch": theirs}), rounds=rounds, calls=calls)
        for name in checkpoints:
            yield compared(name, f"{length} saved", times, LIMITS[name].ratios[place])
    function, x = chain(1), torch.ones(4)

    def through(one: Checkpoint) -> Callable[[], object]:
        return lambda: one(function, x)

    with torch.no_grad():
        timed = {"replay": lambda: function(x), **{name: through(one) for name, one in checkpoints.items()}}
        times = interleaved({**timed, "torch": through(theirs)}, rounds=max(3, int(scale * 200)), calls=40)
        for name in checkpoints:
            yield compared(name, "no_grad", times, LIMITS[name].no_grad)


def compared(name: str, of: str, times: Times, limit: float) -> Reading:
    """The ratio of what a checkpoint of ours adds to replay to what PyTorch's adds."""
    floor, ours, other = (1e6 * times.median(one) for one in ("replay", name, "torch"))
    low, high = times.spread(name, "torch", "replay")
    detail = f"half of the rounds in {low:.2f} to {high:.2f}"
    ratio = times.ratio(name, "torch", "replay")
    return Reading(name, f"overhead ratio, {of}", ratio, limit, detail, "µs", ours - floor, other - floor, floor)


def memory(checkpoints: Checkpoints, length: int = 1000, passes: int = 4000) -> Iterator[Reading]:
    """Bytes for a saved tensor once forward is over: Python's, as tracemalloc counts them, and all that is on the host's heap.

    Also what each of ``passes`` backward calls over a retained graph leaves on the heap. Raises
    :class:`benches.overhead.host_memory.UnmeasurableError` at the end, if this machine does not say what is on the heap.
    """
    for name, one in checkpoints.items():
        if LIMITS[name].python_memory is not None:
            yield python_memory(name, one, length)
    heap = host_memory.measure_in_process_of_its_own(length, passes)
    other, other_left = heap["torch"]["saved"], heap["torch"]["left"]
    for name in checkpoints:
        ours, left = heap[name]["saved"], heap[name]["left"]
        detail = f"in a region of {length}, beyond a graph that saves nothing"
        ratio = ours / other
        yield Reading(name, "host memory per saved tensor", ratio, LIMITS[name].host_memory, detail, "bytes", ours, other)
        detail = f"over {passes} passes; PyTorch's leaves {other_left:,.0f}"
        yield Reading(name, "bytes of host memory that a retained backward leaves", left, 1.0, detail)


def python_memory(name: str, checkpoint: Checkpoint, length: int) -> Reading:
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
    detail, limit = f"in a region of {length}", LIMITS[name].python_memory
    return Reading(name, "Python memory per saved tensor", ours / other, limit, detail, "bytes", ours, other)


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the bytes that Python has allocated since."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def growth(checkpoints: Checkpoints, scale: float) -> Iterator[Reading]:
    """What must not grow: time per saved tensor and per region, by their number; a graph that is kept; frames by depth.

    Times are taken again without Python's garbage collector, which goes through all objects there are from time to time.
    """
    for kind, context in (("", nullcontext()), (", garbage collector off", _uncollected())):
        with context:
            for name, counts, series in (("time per further saved tensor", TENSORS, further(checkpoints, scale)),
                                         ("time per region in a row", ROW, in_a_row(checkpoints, scale))):  # fmt: skip
                yield from (flat(one, name + kind, counts, series) for one in checkpoints)
    for name, one in checkpoints.items():
        yield from retained(name, one, 1000)
        yield depth(name, one)


def further(checkpoints: Checkpoints, scale: float) -> Series:
    """Seconds for a saved tensor beyond the second in a region: a region that recomputes only one takes a shortcut."""
    found = added(checkpoints, [(2, 1), *((length, 1) for length in TENSORS)], scale)
    lengths = list(enumerate(TENSORS, 1))
    return {name: [(times[place] - times[0]) / (length - 2) for place, length in lengths] for name, times in found.items()}


def in_a_row(checkpoints: Checkpoints, scale: float) -> Series:
    """Seconds for a region of one saved tensor."""
    found = added(checkpoints, [(1, count) for count in ROW], scale)
    return {name: [one / count for count, one in zip(ROW, times, strict=True)] for name, times in found.items()}


def added(checkpoints: Checkpoints, shapes: Sequence[tuple[int, int]], scale: float) -> Series:
    """Seconds that ours and PyTorch's add to replay for each (saved tensors of a region, regions in a row), interleaved.

    The least of all rounds counts, since disturbances only add time, and small differences are computed from it.
    """
    timed: dict[str, Callable[[], None]] = {}
    checkpoints = {**checkpoints, "torch": theirs}
    repeats = {shape: max(1, PER_ROUND // ((shape[0] + 10) * shape[1])) for shape in shapes}
    for shape, count in repeats.items():
        for name, run in regions(shape[0], checkpoints, shape[1]).items():
            timed[f"{name} {shape}"] = _repeated(run, count)
    times = interleaved(timed, rounds=max(2, int(scale * 7)), calls=1, warm=1)
    return {
        name: [(times.least(f"{name} {shape}") - times.least(f"replay {shape}")) / count for shape, count in repeats.items()]
        for name in checkpoints
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


def flat(checkpoint: str, name: str, counts: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> Reading:
    """The largest of our times by the smallest, whichever of the counts they are of; PyTorch's beside them."""
    ours, other = (
        ", ".join(f"{1e6 * one:.2f} µs at {count:,}" for count, one in zip(counts, seconds[of], strict=True))
        for of in (checkpoint, "torch")
    )
    detail = f"{ours}; PyTorch's {max(seconds['torch']) / min(seconds['torch']):.2f}, {other}"
    ratio = max(seconds[checkpoint]) / min(seconds[checkpoint])
    return Reading(checkpoint, f"{name}, largest / smallest", ratio, 1.2, detail)


def retained(name: str, checkpoint: Checkpoint, passes: int) -> Iterator[Reading]:
    """Time of a backward over a graph that has had many, beside one that has had few; and Python memory that each leaves."""
    old, young = _retaining(checkpoint), _retaining(checkpoint)
    for _ in range(passes):
        old()
    times = interleaved({"old": old, "young": young}, rounds=passes // 10, calls=1)
    after, first = times.median("old"), times.median("young")
    detail = f"medians of {1e6 * after:.0f} and {1e6 * first:.0f} µs, where the first has {passes} passes behind it"
    yield Reading(name, "a retained backward, late / early", after / first, 1.2, detail)
    with _traced() as allocated:
        old()  # what is made once only
        gc.collect()
        before = allocated()
        for _ in range(passes):
            old()
        gc.collect()
        left = allocated() - before
    yield Reading(name, "bytes of Python that a retained backward leaves", left / passes, 1.0, f"{left} after {passes} passes")


def _retaining(checkpoint: Checkpoint) -> Callable[[], None]:
    y, ones = checkpoint(chain(10), torch.ones(4, requires_grad=True)), torch.ones(4)

    def backward() -> None:
        y.backward(ones, retain_graph=True)

    return backward


def depth(name: str, checkpoint: Checkpoint) -> Reading:
    """How deep regions nest before Python's recursion limit, forward alone and with backward.

    Where backward runs parents again from within a region, which unpacks its inputs, every level adds the frames of an
    unpacking and of a recomputation to those of the one below it. The limit is on forward, and on backward too if a level of
    backward takes no frames.
    """
    limits, nest = LIMITS[name], _Nest(checkpoint)
    with _recursion_limit(limits.recursion_limit):
        deepest, most = (nest.deepest(backward=backward) for backward in (False, True))
    per_level = [(high - low) / 20 for low, high in zip(nest.frames(20), nest.frames(40), strict=True)]
    detail = (
        f"{deepest:,} in forward and {most:,} in backward, of which each level takes {per_level[0]:.0f} and "
        f"{per_level[1]:.0f} frames of Python; its recursion limit, here {limits.recursion_limit:,}, bounds both"
    )
    reached = deepest if per_level[1] else most
    return Reading(name, f"{limits.deep:,} nested regions / deepest in forward", limits.deep / reached, 1.0, detail)


@contextmanager
def _recursion_limit(limit: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@dataclass(frozen=True)
class _Nest:
    """Regions of one operator each, nested as deeply as is asked for."""

    checkpoint: Checkpoint

    def run(self, levels: int, x: torch.Tensor, note: Callable[[], object]) -> torch.Tensor:
        note()
        return self.checkpoint(self.run, levels - 1, x.sin(), note) if levels else x.cos()

    def survives(self, levels: int, *, backward: bool) -> bool:
        try:
            y = self.run(levels, torch.ones(2, requires_grad=True), int)
            if backward:
                y.sum().backward()
        except RecursionError:
            return False
        return True

    def deepest(self, *, backward: bool) -> int:
        low, high = 1, sys.getrecursionlimit()
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.survives(middle, backward=backward) else (low, middle)
        return low

    def frames(self, levels: int) -> tuple[int, int]:
        """The most frames of Python under a call of the function, in forward and in backward."""
        most = 0

        def note() -> None:
            nonlocal most
            count, frame = 0, sys._getframe()
            while frame.f_back is not None:
                count, frame = count + 1, frame.f_back
            most = max(most, count)

        y = self.run(levels, torch.ones(2, requires_grad=True), note)
        forward, most = most, 0
        y.sum().backward()
        return forward, most
