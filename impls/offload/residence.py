"""What is loaded while backward runs: the slice that runs and the one before it, which comes next.

Backward asks for slices in reverse order. The first time it asks for one, that slice is loaded whole, or was already on
its way, and the one before is sent for. What is loaded belongs to the engine's task and goes with it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from impls.offload.slice_use import Loaded, SliceUse
from impls.offload.transfers import Arrival, Route
from impls.torch_private import current_graph_task_id, queue_callback


class _Task:
    """What one backward has loaded. Callable, so that the engine's task can own it as its final callback."""

    def __init__(self) -> None:
        self.current: tuple[int, Loaded] | None = None
        self.coming: tuple[int, Loaded] | None = None
        self.last: Arrival | None = None

    def __call__(self) -> None:
        self.current = self.coming = None
        if self.last is not None:
            self.last.settle()  # parameters may be changed once backward is over, and must not be read any more
            self.last = None

    def __del__(self) -> None:
        self()

    def load(self, use: SliceUse) -> tuple[int, Loaded]:
        loaded = use.load()
        self.last = Arrival({}, loaded.arrival.copy_streams, loaded.arrival.done)
        return use.index, loaded

    def take(self, use: SliceUse, names: Collection[str]) -> Loaded:
        if self.current is not None and self.current[0] == use.index and self.current[1].serves(use.tensors, names):
            return self.current[1]
        self.current, self.coming = self.coming, None  # the one before goes first, so that two are the most there are
        if self.current is None or self.current[0] != use.index or not self.current[1].serves(use.tensors, names):
            self.current = None
            self.current = self.load(use)
        following = use.next()
        if following is not None:
            self.coming = self.load(following)
        return self.current[1]


class Residence:
    """The backward passes of one model that have something loaded, and which thread has copies in the modules."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.tasks: dict[int, weakref.ref[_Task]] = {}
        self.loading, self.running = threading.RLock(), threading.RLock()
        self.last_write: tuple[weakref.ref[object], Any] | None = None  # by which call of the model, and its event
        self.abandoned = False  # with the copies of a run in the modules, which another process goes on with
        _residences.add(self)

    def __reduce__(self) -> tuple[type[Residence], tuple[Route]]:
        return Residence, (self.route,)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads from running modules of the model, or looking at their parameters, while these are copies."""
        if self.abandoned:
            raise RuntimeError(
                "this process was forked while another thread ran a slice of this OffloadModel, so its modules have copies of "
                "that run. Make the model anew, or fork when nothing runs"
            )
        if not self.running.acquire(timeout=300):
            raise RuntimeError("another thread does not end its run of a slice of this OffloadModel, and slices take turns")
        try:
            yield
        finally:
            self.running.release()

    def note_writes(self, call: object, events: Sequence[Any]) -> None:
        """Note that a call of the model has written to parameters and buffers, which they have after these events."""
        if events and events[-1] is not None:
            self.last_write = weakref.ref(call), events[-1]  # all writes go over one stream, in order

    def wait_for_other_calls(self, call: object) -> None:
        """Let the host wait for what another call has written, as on another thread; a call knows what its own slices share."""
        if self.last_write is not None and self.last_write[0]() is not call:
            self.last_write[1].synchronize()

    def take(self, use: SliceUse, names: Collection[str]) -> Loaded:
        """What is loaded of a use's slice in the backward that is under way; outside of one, it is loaded for this once."""
        number = current_graph_task_id()
        if number == -1:
            return use.load()
        with self.loading:
            reference = self.tasks.get(number)
            task = None if reference is None else reference()
            if task is None:
                task = _Task()
                self.tasks = {key: weak for key, weak in self.tasks.items() if weak() is not None}
                self.tasks[number] = weakref.ref(task)
                queue_callback(task)
            return task.take(use, names)

    def after_fork(self) -> None:
        """What another thread was in the middle of is never ended here, as that thread did not come along."""
        if not self.running.acquire(blocking=False):
            self.running, self.abandoned = threading.RLock(), True
        else:
            self.running.release()
        self.loading = threading.RLock()


_residences: weakref.WeakSet[Residence] = weakref.WeakSet()


def _after_fork() -> None:
    for residence in _residences:
        residence.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
