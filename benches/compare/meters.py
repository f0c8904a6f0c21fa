"""What a step costs apart from time: bytes after forward and at the peak, the work of backward, calls, Python's memory.

A step is called with a function that it calls once forward is over, before its backward.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from benches.models.workloads import device_type
from benches.papers.meters.live import Live

Step = Callable[[Callable[[], object]], object]


def _fused(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _fused_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# Torch has formulas for the fused attention of CUDA alone; they take shapes.
FUSED_ON_CPU = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
}


@dataclass(frozen=True)
class Bytes:
    """Bytes that a step added to what was there: kept once forward was over, and the most at any time."""

    kept: int
    peak: int


@dataclass(frozen=True)
class Work:
    """FLOPs of matrix products and convolutions, and operators that are no views, as torch dispatches them."""

    flops: int
    operators: int

    def beyond(self, other: Work | None) -> Work:
        """How much more this is. Raises ValueError when the other is not known."""
        if other is None:
            raise ValueError("other is None: the work that this is compared with could not be measured")
        return Work(self.flops - other.flops, self.operators - other.operators)


def ledger(step: Step) -> Bytes:
    """Bytes of storages that operators make, fake ones included. Compiled code hides its operators, so do not use it there."""
    kept: list[int] = []
    with _undisturbed(), Live() as live:
        step(lambda: kept.append(live.alive))
    return Bytes(kept[0], live.peak)


def allocated(step: Step, device: str) -> Bytes:
    """Bytes by torch's allocator: what its profiler records on the CPU, what was asked of the caching allocator on CUDA.

    Workspaces of kernels are in it, and states of random number generators. Raises ValueError for other types of device.
    """
    kind = device_type(device)
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; allocators are read on cpu and cuda, use ledger for others")
    with _undisturbed():
        return _profiled(step) if kind == "cpu" else _requested(step, device)


def _profiled(step: Step) -> Bytes:
    """The profiler's memory events; what is freed without having been allocated in the step counts as well."""

    def mark() -> None:
        with record_function("forward is over"):
            pass

    spans, memory = recorded(lambda: step(mark))
    inside, (over, _) = within(memory, spans["step"]), spans["forward is over"]
    return Bytes(sum(change for at, change in inside if at <= over), most(inside))


Span = tuple[float, float]
Changes = list[tuple[float, int]]


def recorded(run: Callable[[], object]) -> tuple[dict[str, Span], Changes]:
    """By name, begin and end of each ``record_function`` of a run, "step" for all of it; and all changes of memory, by time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record, record_function("step"):
        run()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        record.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    annotated = [event for event in events if event.get("cat") == "user_annotation"]
    spans = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in annotated}
    return spans, sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")


def within(memory: Changes, span: Span) -> Changes:
    """The changes from the begin to the end of a span."""
    begin, end = span
    return [(at, change) for at, change in memory if begin <= at <= end]


def most(memory: Changes) -> int:
    """The most bytes that changes add up to at any time, 0 at least."""
    return max(0, *itertools.accumulate(change for _, change in memory), 0)


def _requested(step: Step, device: str) -> Bytes:
    """Bytes as requested, before the caching allocator rounds them up."""
    kept: list[int] = []

    def now() -> int:
        return torch.cuda.memory_stats(device)["requested_bytes.all.current"]

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = now()
    step(lambda: kept.append(now() - before))
    torch.cuda.synchronize(device)
    return Bytes(kept[0], torch.cuda.memory_stats(device)["requested_bytes.all.peak"] - before)


class _Dispatched(TorchDispatchMode):
    """Counts operators that are no views. ``hidden`` is whether any was called through another, as compiled graphs do."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.count, self.hidden = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload):
            self.hidden = True
            with _disable_current_modes():  # FlopCounterMode has no rule for it
                return func(*args, **(kwargs or {}))
        self.count += not func.is_view and func.namespace != "prim"  # fake tensors ask for their device in this way
        return func(*args, **(kwargs or {}))


def work(step: Step) -> Work | None:
    """The work of a step, or None where operators are hidden in others."""
    operators = _Dispatched()
    flops = FlopCounterMode(display=False, custom_mapping=FUSED_ON_CPU)
    with flops, operators:
        step(_nothing)
    return None if operators.hidden else Work(flops.get_total_flops(), operators.count)


def _nothing() -> None:
    pass


class Calls:
    """How often functions were called."""

    def __init__(self) -> None:
        self.count = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted; a module keeps its name for messages alone."""

        @functools.wraps(function, assigned=("__name__", "__qualname__"), updated=())
        def counted(*args: Any) -> Any:
            self.count += 1
            return function(*args)

        return counted


def saved_tensors(step: Step) -> int:
    """How many tensors autograd saves in a step."""
    count = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step(_nothing)
    return count


def python_bytes(step: Step) -> int:
    """Bytes that Python has allocated by the time that forward is over, beyond what there was, as tracemalloc counts them."""
    taken: list[int] = []
    with _undisturbed():
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            step(lambda: taken.append(tracemalloc.get_traced_memory()[0] - before))
        finally:
            tracemalloc.stop()
    return taken[0]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Collect garbage, then switch the collector off: what is in a reference cycle counts until something else frees it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
