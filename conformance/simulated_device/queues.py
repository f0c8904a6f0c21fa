"""Lanes: the queues behind the streams of the simulated device, and the known order of their work.

The default stream's lane has no queue: its work runs at once. On any other, operators run at once too, after what is
queued before them; copies and waits are queued, and run when somebody waits for them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_LOCK = threading.RLock()
_STREAMS = 32  # as in torch.cuda, whose streams come from a pool
_ABOVE = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
for _name in ("AutogradCPU", "ADInplaceOrView", "AutocastCPU"):
    _ABOVE = _ABOVE | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))

Clock = dict[int, int]  # by the number of a lane, how much of its work is known to be done
Point = tuple[int, int]  # a lane's number, and a position in it


class Below:
    """Inside, the CPU works for the device, without modes, autograd, version counters and other threads."""

    def __enter__(self) -> None:
        _LOCK.acquire()
        self.keys = torch._C._ExcludeDispatchKeyGuard(_ABOVE)
        self.keys.__enter__()
        self.modes = torch._C._DisableTorchDispatch()  # in force from here on, and left in reverse order
        self.functions = torch._C.DisableTorchFunction()
        self.functions.__enter__()

    def __exit__(self, *_: object) -> None:
        self.functions.__exit__(None, None, None)
        self.modes.__exit__(None, None, None)
        self.keys.__exit__(None, None, None)
        _LOCK.release()


@dataclass
class Mark:
    """A point in a lane; ``clock`` is known once the lane has reached it."""

    lane: Lane
    position: int
    clock: Clock | None = None


class Host:
    """A tensor of the host that a copy is on its way to; it may die before."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.place = int(tensor.storage_offset()), tensor.size(), tensor.stride()
        self.bits = tensor.is_conj(), tensor.is_neg()

    def receive(self, values: torch.Tensor) -> None:
        """Write the values that have arrived, unless nobody holds the memory any more."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is not None:
            tensor = torch.empty(0, dtype=values.dtype).set_(storage, *self.place)
            torch._C._set_conj(tensor, self.bits[0])
            torch._C._set_neg(tensor, self.bits[1])
            tensor.copy_(values)


@dataclass
class Landed:
    """What a copy has brought to the host, before the host may count on it."""

    position: int
    host: Host
    values: torch.Tensor


class Lane:
    """The queue behind a stream; lane 0 is the default stream's. ``freed`` are last uses by other lanes of memory it freed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.issued = self.done = self.asked = 0
        self.tasks: deque[Callable[[], None]] = deque()
        self.clock: Clock = {}
        self.landed: list[Landed] = []
        self.freed: list[Point] = []

    def enqueue(self, task: Callable[[], None]) -> None:
        """Put a task at the end; on the default lane it runs at once."""
        self.issued += 1
        self.tasks.append(task)
        if self.number == 0:
            self.run(self.issued)

    def run(self, until: int) -> None:
        """Do what is queued up to a position."""
        while self.done < until:
            self.done += 1
            self.clock[self.number] = self.done
            self.tasks.popleft()()

    def operate(self) -> Point:
        """Issue an operator: run what is queued before it. Returns the operator's point."""
        self.run(self.issued)
        self.issued += 1
        self.done = self.clock[self.number] = self.issued
        return self.number, self.issued

    def mark(self) -> Mark:
        """A mark at the end of the lane."""
        mark = Mark(self, 0)

        def reach() -> None:
            mark.clock = dict(self.clock)

        with Below():
            mark.position = self.issued + 1
            self.enqueue(reach)
        return mark

    def wait(self, mark: Mark) -> None:
        """Later work of this lane comes after the mark."""

        def wait() -> None:
            mark.lane.run(mark.position)
            _merge(self.clock, mark.clock)

        with Below():
            self.enqueue(wait)

    def unordered(self, points: list[Point]) -> Point | None:
        """One of the points, if it is not known to be over at this place in the lane."""
        return next((point for point in points if point[0] != self.number and self.clock.get(point[0], 0) < point[1]), None)

    def show(self, host: Callable[[Landed], bool]) -> None:
        """Write what has landed on the host into its memory, in the order of arrival."""
        shown = [landed for landed in self.landed if host(landed)]
        self.landed = [landed for landed in self.landed if landed not in shown]
        for landed in shown:
            landed.host.receive(landed.values)


_hazards: list[str] = []
_lanes = tuple(Lane(number) for number in range(_STREAMS + 1))
_made = 0
_host: Clock = {}
_local = threading.local()


def hazards() -> tuple[str, ...]:
    """What was found wrong since ``forget_hazards``, in words; each garbled some values."""
    return tuple(_hazards)


def forget_hazards() -> None:
    """Run what is queued, and start the list of hazards anew."""
    for lane in _lanes:
        host_waits(lane.mark())
    _hazards.clear()


def hazard(text: str) -> None:
    """Note a hazard."""
    _hazards.append(text)


def lanes() -> tuple[Lane, ...]:
    """Every lane there is, by its number."""
    return _lanes


def next_lane() -> Lane:
    """The lane for a new stream; they take turns."""
    global _made
    with _LOCK:
        _made += 1
        return _lanes[(_made - 1) % _STREAMS + 1]


def current() -> Lane:
    """The lane of the stream that is current on this thread."""
    return getattr(_local, "lane", _lanes[0])


def set_current(to: Lane) -> None:
    """Make a lane current on this thread."""
    _local.lane = to


class Waiting:
    """Whether the host may wait for a value; where not, operators that make it wait raise RuntimeError."""

    refused = False


def host_needs(mark: Mark) -> None:
    """The host waits since an operator has to have a value; RuntimeError where that is refused."""
    if Waiting.refused:
        raise RuntimeError("an operator makes the host wait for the simulated device, and its debug mode is 'error'")
    host_waits(mark)


def host_waits(mark: Mark) -> None:
    """The host comes after the mark: it sees what has landed, and all work that is issued later comes later."""
    with Below():
        mark.lane.run(mark.position)
        _merge(_host, mark.clock)
        for number, position in (mark.clock or {}).items():
            _lanes[number].show(lambda landed, until=position: landed.position <= until)  # type: ignore[misc]


def not_waited_for(*points: Point) -> list[Point]:
    """The points that the host has not waited for, so that work issued now has to."""
    return [point for point in points if _host.get(point[0], 0) < point[1]]


def _merge(into: Clock, other: Clock | None) -> None:
    for number, position in (other or {}).items():
        into[number] = max(into.get(number, 0), position)
