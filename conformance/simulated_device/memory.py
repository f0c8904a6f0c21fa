"""Memory of the simulated device, and copies that do not block: what is read if nobody waited for them.

Until a queued copy to the device runs, its destination holds garbage; what a copy has brought to the host is garbage
until the host itself waits, on the default stream too. A copy brings garbage as well when another stream may still be
at work on its memory, when its source was freed while it was queued, and when it goes to memory whose last owner left it
in use on another stream without ``record_stream``. Garbage is NaN, the largest integer, True; in freed memory, bytes of
all ones. A program without races computes what it computes on a CPU.

Host memory is treated as pinned whether it is or not: a queued copy reads it when it runs. Not found: races of operators
with each other, since they run as soon as they are issued.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from conformance.simulated_device.queues import Below, Clock, Host, Landed, Lane, Point, current, hazard, lanes, not_waited_for

_FREED = 0xFF
_BLOCK = 512  # bytes, to which memory that is given out is rounded, as in torch.cuda


class Given:
    """The allocated bytes now, and the most since ``begin``; memory that only queued copies hold does not count."""

    now = most = 0

    @classmethod
    def begin(cls) -> None:
        """Forget the most so far."""
        cls.most = cls.now

    @classmethod
    def add(cls, size: int, times: int) -> None:
        """Count so many bytes as allocated, or with ``times`` -1 as freed."""
        cls.now += times * -(-size // _BLOCK) * _BLOCK
        cls.most = max(cls.most, cls.now)


@dataclass(eq=False)
class Memory:
    """What one storage of the device is made of; queued copies hold it, so it outlives the storage.

    ``written`` is the last write; ``earlier`` are uses of memory that this one may reuse; ``used`` is the last use by lanes
    other than the one it was allocated on; ``pending`` is how many queued copies of each lane need it.
    """

    raw: torch.UntypedStorage
    size: int
    lane: int
    written: Point
    earlier: tuple[Point, ...] = ()
    used: Clock = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)
    pending: Counter[int] = field(default_factory=Counter)

    def free(self) -> None:
        """The last tensor is gone. If another stream still needs the memory and did not record that, it now holds garbage."""
        Given.add(self.size, -1)
        late = [lane for lane, copies in self.pending.items() if copies and lane not in (self.lane, *self.recorded)]
        if late:
            hazard(f"memory was freed while stream {late[0]} still needed it, without record_stream")
            with Below():
                torch.empty(0, dtype=torch.uint8).set_(self.raw).fill_(_FREED)
        lanes()[self.lane].freed += [point for point in self.used.items() if point[0] not in self.recorded]


def allocated(raw: torch.UntypedStorage) -> Memory:
    """New memory on the current lane, which may be a reuse of earlier memory."""
    lane = current()
    lane.freed = [point for point in not_waited_for(*lane.freed) if lane.clock.get(point[0], 0) < point[1]]
    Given.add(raw.nbytes(), 1)
    return Memory(raw, raw.nbytes(), lane.number, (lane.number, lane.issued), tuple(lane.freed))


def operated(memory: Memory, point: Point, *, wrote: bool) -> None:
    """An operator at this point has used the memory."""
    _use(memory, point)
    if wrote:
        memory.written, memory.earlier = point, ()


def bring(target: torch.Tensor, memory: Memory, source: torch.Tensor) -> None:
    """Copy from the host to the device, on the current lane and without blocking."""
    lane = current()
    earlier = not_waited_for(memory.written, *memory.earlier)
    source = source.expand(target.shape)  # raises here rather than when its turn comes
    if lane.number:
        _garble(target)

    def copy() -> None:
        memory.pending[lane.number] -= 1
        host = source.untyped_storage()._cdata
        for other in lanes():
            other.show(lambda landed: landed.host.storage.cdata == host)  # the device sees what has landed
        target.copy_(source)
        _check(lane, earlier, target)

    memory.pending[lane.number] += 1
    operated(memory, (lane.number, lane.issued + 1), wrote=True)
    lane.enqueue(copy)


def fetch(target: torch.Tensor, source: torch.Tensor, memory: Memory) -> None:
    """Copy from the device to the host, on the current lane and without blocking: the host has to wait."""
    lane = current()
    earlier = not_waited_for(memory.written)
    source = source.expand(target.shape)
    _garble(target)
    host, values = Host(target), torch.empty_like(target)

    def copy() -> None:
        memory.pending[lane.number] -= 1
        values.copy_(source)
        _check(lane, earlier, values)
        lane.landed.append(Landed(lane.done, host, values))

    memory.pending[lane.number] += 1
    operated(memory, (lane.number, lane.issued + 1), wrote=False)
    lane.enqueue(copy)


def _use(memory: Memory, point: Point) -> None:
    if point[0] != memory.lane:
        memory.used[point[0]] = point[1]


def _check(lane: Lane, earlier: list[Point], values: torch.Tensor) -> None:
    unordered = lane.unordered(earlier)
    if unordered is not None:
        hazard(f"stream {lane.number} copied without waiting for stream {unordered[0]}, which may be using the memory")
        _garble(values)


def _garble(raw: torch.Tensor) -> None:
    if raw.dtype.is_floating_point or raw.dtype.is_complex:
        raw.fill_(float("nan"))
    else:
        raw.fill_(True if raw.dtype is torch.bool else torch.iinfo(raw.dtype).max)
