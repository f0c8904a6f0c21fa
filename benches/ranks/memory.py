"""The most bytes that a rank's own thread holds in a step, by torch's allocator.

Copies that gloo makes inside of a collective are left out: it frees them on threads of its own, where the profiler may not
see it, and another backend has other ones.
"""

from __future__ import annotations

import gc
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

STEP = "forward and backward"
PAUSE = 0.005  # seconds
Event = Mapping[str, Any]  # of a trace of Chrome


def recorded(prepare: Callable[[], Callable[[], object]]) -> tuple[int, int]:
    """The most bytes during the step that ``prepare`` returns, including what ``prepare`` left, and the bytes never seen freed.

    Once the step is over and dropped, nothing of it may be left. What is left was last held by a thread of gloo, which the
    profiler does not follow; then the first number is too large.
    """
    with _patience(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        step: Callable[[], object] | None = prepare()
        assert step is not None
        with record_function(STEP):
            step()
        step = None
        gc.collect()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        record.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return most(events, threading.get_native_id())


@contextmanager
def _patience() -> Iterator[None]:
    """Give gloo's threads time to let go of what a collective was about before the rank's own thread does."""
    wait = dist.Work.wait

    def waited(work: Any, *arguments: Any) -> Any:
        result = wait(work, *arguments)
        time.sleep(PAUSE)
        return result

    dist.Work.wait = waited  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]


def most(events: Sequence[Event], thread: int) -> tuple[int, int]:
    """The most that a thread holds in the step of what it allocated outside of collectives, and the bytes never seen freed."""
    mine = sorted((event for event in events if event.get("tid") == thread), key=lambda event: event["ts"])
    inside = [_span(event) for event in mine if event["name"].startswith("c10d::") and "dur" in event]
    begin, end = next(_span(event) for event in mine if event["name"] == STEP and "dur" in event)
    found = 0
    changes = [*_alive([event for event in mine if event["name"] == "[memory]"], inside)]
    for at, alive, _ in changes:
        if at < begin:
            found = alive
        elif at <= end:
            found = max(found, alive)
    _, left, overwritten = changes[-1]
    return found, left + overwritten


def _alive(memory: Sequence[Event], inside: Sequence[tuple[float, float]]) -> Iterator[tuple[float, int, int]]:
    """After each event its time, the bytes allocated outside of these spans, and those whose place was taken before a free."""
    sizes: dict[int, int] = {}
    total, unseen, spans = 0, 0, iter(inside)
    begin, end = next(spans, (float("inf"),) * 2)
    for event in memory:
        at, place, size = event["ts"], event["args"]["Addr"], event["args"]["Bytes"]
        while at > end:
            begin, end = next(spans, (float("inf"),) * 2)
        if size < 0:
            total -= sizes.pop(place, 0)
        elif at < begin:
            gone = sizes.get(place, 0)
            total, unseen = total + size - gone, unseen + gone
            sizes[place] = size
        yield at, total, unseen


def _span(event: Event) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]
