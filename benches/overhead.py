"""``python -m benches.overhead``: what the nested checkpoint adds to the work it repeats, against PyTorch's.

The workload is a chain of k element-wise operators on four elements, one region, forward and backward, one thread.
*Replay* is plain forward and backward and one more forward with grad: the work that any checkpoint does. The overhead
ratio is (ours - replay) / (PyTorch's non-reentrant - replay). Under no_grad plain stands in for replay. ``--memory`` and
``--growth`` measure Python memory per saved tensor and what must not grow; results go to ``results/runs`` as JSON.
The status is 1 when a limit does not hold.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from benches.rounds import interleaved
from impls.nested import checkpoint

RUNS = Path(__file__).parents[1] / "results" / "runs"
LIMITS = {1: 0.28, 10: 0.30, 100: 0.33, 1000: 0.35}


@dataclass(frozen=True)
class Reading:
    """One figure, its limit, and what it is made from, in words."""

    name: str
    value: float
    limit: float
    detail: str

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def chain(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of a region: so many sines, one after the other."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(length):
            x = x.sin()
        return x

    return function


def theirs(function: Callable[..., Any], *args: Any) -> Any:
    """PyTorch's non-reentrant checkpoint."""
    return torch_checkpoint(function, *args, use_reentrant=False)


def contenders(length: int, regions: int = 1) -> dict[str, Callable[[], None]]:
    """Replay, ours and PyTorch's on ``regions`` chains in a row."""
    function, x, ones = chain(length), torch.ones(4, requires_grad=True), torch.ones(4)

    def replay() -> None:
        y = x
        for _ in range(regions):
            function(y)
            y = function(y)
        y.backward(ones)

    def through(implementation: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            y = x
            for _ in range(regions):
                y = implementation(function, y)
            y.backward(ones)

        return run

    return {"replay": replay, "ours": through(checkpoint), "torch": through(theirs)}


def overhead(scale: float) -> Iterator[Reading]:
    """The overhead ratio by number of saved tensors, and under no_grad."""
    for length, limit in LIMITS.items():
        calls = max(1, 40 // length)
        times = interleaved(contenders(length), rounds=max(3, int(scale * (200 if length < 1000 else 60))), calls=calls)
        base, ours, other = (times.median(name) * 1e6 for name in ("replay", "ours", "torch"))
        low, high = times.spread("ours", "torch", "replay")
        yield Reading(f"overhead ratio, {length} saved", times.ratio("ours", "torch", "replay"), limit,
                      f"replay {base:.1f} µs, ours +{ours - base:.1f}, torch +{other - base:.1f}; half of the rounds in "
                      f"{low:.2f} to {high:.2f}")  # fmt: skip
    function, x = chain(1), torch.ones(4)
    with torch.no_grad():
        plain = {"plain": lambda: function(x), "ours": lambda: checkpoint(function, x), "torch": lambda: theirs(function, x)}
        times = interleaved(plain, rounds=max(3, int(scale * 200)), calls=40)
    base, ours, other = (times.median(name) * 1e6 for name in ("plain", "ours", "torch"))
    yield Reading("overhead ratio, no_grad", times.ratio("ours", "torch", "plain"), 0.2,
                  f"plain {base:.1f} µs, ours +{ours - base:.1f}, torch +{other - base:.1f}")  # fmt: skip


def memory(length: int = 1000) -> Iterator[Reading]:
    """Bytes that Python has allocated for a saved tensor once forward is over, as tracemalloc counts them."""
    function, x = chain(length), torch.ones(4, requires_grad=True)
    sizes = []
    for implementation in (checkpoint, theirs):
        implementation(function, x)  # what is made once only
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        y = implementation(function, x)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del y
        sizes.append((after - before) / length)
    yield Reading("Python memory per saved tensor", sizes[0] / sizes[1], 0.5,
                  f"ours {sizes[0]:.0f} bytes, torch {sizes[1]:.0f}, in a region of {length}")  # fmt: skip


def growth(scale: float) -> Iterator[Reading]:
    """Time per saved tensor and per region, by their number, and over a graph that is kept; each against the first."""

    def added(length: int, regions: int) -> float:
        pair = contenders(length, regions)
        del pair["torch"]
        calls = max(1, 200 // (length * regions))
        times = interleaved(pair, rounds=max(3, int(scale * min(60, 60_000 // (length * regions)))), calls=calls, warm=1)
        return times.median("ours") - times.median("replay")

    one = added(1, 1)
    tensors = {length: (added(length, 1) - one) / (length - 1) for length in (10, 100, 1000, 10_000, 100_000)}
    yield _grown("time per further saved tensor", tensors)
    yield _grown("time per region in a row", {regions: added(1, regions) / regions for regions in (10, 100, 1000, 10_000)})
    yield _retained(max(100, int(scale * 1000)))


def _grown(name: str, seconds: dict[int, float]) -> Reading:
    first = next(iter(seconds.values()))
    detail = ", ".join(f"{1e6 * one:.2f} µs at {count:,}" for count, one in seconds.items())
    return Reading(f"{name}, largest / first", max(seconds.values()) / first, 1.2, detail)


def _retained(passes: int) -> Reading:
    x = torch.ones(4, requires_grad=True)
    y = checkpoint(chain(10), x)
    seconds = [0.0] * passes
    tracemalloc.start()
    for index in range(passes):
        started = time.thread_time()
        y.backward(torch.ones(4), retain_graph=True)
        seconds[index] = time.thread_time() - started
        if index == 1:  # what is made once only is made by now
            before, _ = tracemalloc.get_traced_memory()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tenth = passes // 10
    early, late = (sorted(part)[tenth // 2] for part in (seconds[tenth : 2 * tenth], seconds[-tenth:]))
    detail = f"{passes} passes; Python memory grows by {(after - before) / passes:.0f} bytes a pass (a time takes 24)"
    return Reading("retained backwards, last tenth / second tenth", late / early, 1.2, detail)


def depth() -> Iterator[Reading]:
    """How deep regions nest before Python's recursion limit: 200 levels in forward are the limit to reach."""

    def nest(levels: int, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(nest, levels - 1, x.sin()) if levels else x.cos()

    def survives(levels: int, backward: bool) -> bool:
        try:
            y = nest(levels, torch.ones(2, requires_grad=True))
            if backward:
                y.sum().backward()
        except RecursionError:
            return False
        return True

    def deepest(backward: bool) -> int:
        low, high = 1, sys.getrecursionlimit()
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if survives(middle, backward) else (low, middle)
        return low

    forward, backward = deepest(False), deepest(True)
    detail = f"{forward} in forward, {backward} in backward, at a recursion limit of {sys.getrecursionlimit()}"
    yield Reading("200 nested regions / deepest in forward", 200 / forward, 1.0, detail)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.overhead", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="Python memory per saved tensor alone")
    parser.add_argument("--growth", action="store_true", help="what must not grow, and depth, alone")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="that many times the usual number of rounds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts = [memory()] if options.memory else []
    parts += [growth(options.scale), depth()] if options.growth else []
    readings = [reading for part in parts or [overhead(options.scale), memory()] for reading in part]
    machine = f"python {platform.python_version()}, torch {torch.__version__}, {platform.platform()}"
    table = Table(title="The nested checkpoint beside PyTorch's", caption=machine, box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("figure", "value", "limit", "made from"):
        table.add_column(heading, justify="right" if heading in ("value", "limit") else "left", overflow="fold")
    for one in readings:
        table.add_row(one.name, f"[{'green' if one.holds else 'bold red'}]{one.value:.3f}", f"{one.limit:.2f}", one.detail)
    console = Console()
    (console if console.is_terminal else Console(width=180)).print(table)  # a log has no width of its own
    RUNS.mkdir(parents=True, exist_ok=True)
    path = RUNS / f"overhead-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": machine, "readings": [asdict(one) for one in readings]}, indent=1) + "\n")
    return 0 if all(one.holds for one in readings) else 1


if __name__ == "__main__":
    sys.exit(main())
