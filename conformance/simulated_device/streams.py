"""What ``torch.sim`` is: streams, events, contexts and generators of the simulated device, named as in ``torch.cuda``.

Only ``torch.get_device_module("sim")`` knows these streams: ``torch.accelerator`` and ``torch.Stream("sim")`` are torch's own,
which knows a single stream. Random numbers come from the CPU's default
generator. There is one device. A backward runs on the default stream, whatever stream forward ran on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.simulated_device import queues as lanes
from conformance.simulated_device.memory import Given
from conformance.simulated_device.queues import Lane, Mark, Waiting, forget_hazards, hazards

__all__ = [
    "Event", "Stream", "current_device", "current_stream", "default_generators", "default_stream", "device",
    "device_count", "forget_hazards", "get_amp_supported_dtype", "get_rng_state", "get_rng_state_all", "get_sync_debug_mode",
    "hazards", "init", "initial_seed",
    "is_available", "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated", "memory_allocated",
    "reset_peak_memory_stats", "set_device", "set_rng_state", "set_rng_state_all", "set_stream", "set_sync_debug_mode",
    "stream", "synchronize",
]  # fmt: skip

default_generators: tuple[torch.Generator, ...] = ()  # none of its own
_PRIVATE_USE_1 = 20
_PATIENCE = 3  # queries in a row, of which the last one runs the work


class Stream(torch.Stream):
    """A queue of work on the simulated device; ``priority`` is accepted and has no effect."""

    def __new__(cls, device: Any = None, priority: int = 0, *, stream_id: int | None = None) -> Stream:
        _index(device)
        number = lanes.next_lane().number if stream_id is None else lanes.lanes()[stream_id].number
        return super().__new__(cls, stream_id=number, device_index=0, device_type=_PRIVATE_USE_1)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    @property
    def _lane(self) -> Lane:
        return lanes.lanes()[self.stream_id]

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """Mark the end of what is queued, with a new event unless one is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        """Later work on this stream comes after the event."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Later work on this stream comes after all that the other one has now."""
        self.wait_event(_ours(stream).record_event())

    def synchronize(self) -> None:
        """The host waits for all that is queued."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Whether all work is done. Nothing runs by itself: repeated queries run the work, so that polling ends."""
        lane = self._lane
        lane.asked = 0 if lane.done == lane.issued else lane.asked + 1
        if 0 < lane.asked < _PATIENCE:
            return False
        lane.asked = 0
        self.synchronize()
        return True


def _ours(stream: Any) -> Stream:
    if not isinstance(stream, torch.Stream) or stream.device.type != "sim":
        raise TypeError(f"stream is {stream!r}; it must be a stream of the simulated device")
    return stream if isinstance(stream, Stream) else Stream(stream_id=stream.stream_id)


class Event:
    """A mark in a stream. Times cannot be measured; one that was never recorded is done."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.mark: Mark | None = None
        self.asked = 0

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the end of what is queued on the stream, the current one unless given."""
        self.asked = 0
        self.mark = (lanes.current() if stream is None else _ours(stream)._lane).mark()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Later work on the stream, the current one unless given, comes after the mark."""
        if self.mark is not None:
            (lanes.current() if stream is None else _ours(stream)._lane).wait(self.mark)

    def query(self) -> bool:
        """Whether the mark was reached. Nothing runs by itself: repeated queries run the work, so that polling ends."""
        if self.mark is not None and self.mark.clock is None:
            self.asked += 1
            if self.asked < _PATIENCE:
                return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """The host waits for the mark."""
        if self.mark is not None:
            lanes.host_waits(self.mark)

    def elapsed_time(self, end_event: Event) -> float:
        """Refused: there is no time here."""
        raise RuntimeError("the simulated device does not measure time")


def current_stream(device: Any = None) -> Stream:
    """The stream that is current on this thread."""
    _index(device)
    return Stream(stream_id=lanes.current().number)


def default_stream(device: Any = None) -> Stream:
    """The stream on which work runs at once."""
    _index(device)
    return Stream(stream_id=0)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream current on this thread; None changes nothing."""
    if stream is not None:
        lanes.set_current(_ours(stream)._lane)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """A stream is current inside; None changes nothing."""
    before = lanes.current()
    set_stream(stream)
    try:
        yield
    finally:
        lanes.set_current(before)


def synchronize(device: Any = None) -> None:
    """The host waits for all streams."""
    _index(device)
    for each in lanes.lanes():
        lanes.host_waits(each.mark())


def _index(device: Any) -> int:
    """The index of a device given as torch.cuda's functions take it; None is the current one."""
    if not isinstance(device, int) and device is not None:
        made = torch.device(device)
        if made.type != "sim":
            raise ValueError(f"device is {device!r}; it must be a device of type 'sim'")
        device = made.index
    if device not in (None, -1, 0):
        raise ValueError(f"device is {device!r}; there is one simulated device, sim:0")
    return 0


def is_available() -> bool:
    """True."""
    return True


def is_initialized() -> bool:
    """True."""
    return True


def init() -> None:
    """Nothing is left to start."""


def _is_in_bad_fork() -> bool:
    return False


def current_device() -> int:
    """0."""
    return 0


def device_count() -> int:
    """1."""
    return 1


def set_device(device: Any) -> None:
    """There is one device to be set."""
    _index(device)


@contextmanager
def device(device: Any) -> Iterator[None]:
    """A device is current inside."""
    _index(device)
    yield


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast`` accepts."""
    return [torch.bfloat16, torch.float16]


def get_rng_state(device: Any = "sim") -> torch.Tensor:
    """The state of the CPU's default generator, which random numbers are drawn from."""
    _index(device)
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "sim") -> None:
    """Set the state of the CPU's default generator."""
    _index(device)
    torch.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set the states of all devices' generators."""
    for state in new_states:
        set_rng_state(state)


def manual_seed(seed: int) -> None:
    """Seed the CPU's default generator."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    manual_seed(seed)


def initial_seed() -> int:
    """The seed of the CPU's default generator."""
    return torch.default_generator.initial_seed()


def memory_allocated(device: Any = None) -> int:
    """Bytes of the device's memory that tensors have, each rounded up to a block of 512."""
    _index(device)
    return Given.now


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes since ``reset_peak_memory_stats``."""
    _index(device)
    return Given.most


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peak to the bytes that tensors have now."""
    _index(device)
    Given.begin()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """With "error" or 2, make it an error that the host waits for a value. Raises ValueError unless that, "default" or 0."""
    if debug_mode not in (0, 2, "default", "error"):
        raise ValueError(f"debug_mode is {debug_mode!r}; it must be 'default', 0, 'error' or 2")
    Waiting.refused = debug_mode in (2, "error")


def get_sync_debug_mode() -> int:
    """2 if it is an error that the host waits for a value, else 0."""
    return 2 * Waiting.refused
