"""Copies between an accelerator and the host that no host thread waits for, ordered by events alone.

Written against ``torch.get_device_module``: any accelerator that has streams and events. Copies out of a device run on
one side stream, copies back on another, so that both overlap with computation and with each other.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

_in_flight: list[tuple[Any, torch.Tensor]] = []
_guard = threading.Lock()


class CopyStreams:
    """The side streams of one device. Copies on them are seen by whoever waits for the event that comes with them."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.module = device, torch.get_device_module(device)
        self.to_host, self.to_device = self.module.Stream(device=device), self.module.Stream(device=device)
        self.pinned = _can_pin(device)

    def fetch(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """A host tensor that will have the source's values as they are now, and the event after which it has them.

        The source may be changed at once: what the side stream reads is a snapshot, taken on the current stream.
        """
        target = torch.empty(source.size(), dtype=source.dtype, device="cpu", pin_memory=self.pinned)
        snapshot = source.clone(memory_format=torch.contiguous_format)
        taken, done = self.module.Event(), self.module.Event()
        taken.record(self.module.current_stream(self.device))
        with self.module.stream(self.to_host):
            self.to_host.wait_event(taken)
            target.copy_(snapshot, non_blocking=True)
            snapshot.record_stream(self.to_host)  # or its memory could be given away before this stream has read it
            done.record(self.to_host)
        return target, done

    def send(self, source: torch.Tensor, make: Callable[[], torch.Tensor], ready: Any) -> tuple[torch.Tensor, Any]:
        """A tensor made by ``make``, which has a host tensor's values for all that is queued on the current stream from now on.

        ``ready`` is the event after which the host tensor has its values; the event that is returned is the one after
        which it is no longer read. The memory is made on the side stream, so the copy need not wait for computation.
        """
        done = self.module.Event()
        with self.module.stream(self.to_device):
            self.to_device.wait_event(ready)
            target = make().copy_(source, non_blocking=True)
            done.record(self.to_device)
        current = self.module.current_stream(self.device)
        current.wait_event(done)
        target.record_stream(current)  # or the side stream could be given the memory while computation still reads it
        return target, done


@functools.cache
def copy_streams(device: torch.device) -> CopyStreams | None:
    """The side streams of a device; None for the host, and for a device without streams or events, which has to wait."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    needed = ("Stream", "Event", "current_stream", "stream")
    return CopyStreams(device) if all(hasattr(module, name) for name in needed) and module.is_available() else None


def keep_until(event: Any, tensor: torch.Tensor) -> None:
    """Keep a host tensor that nothing else owns until the copy that the event stands for is over."""
    if not event.query():
        with _guard:
            _in_flight.append((event, tensor))


def release_finished() -> None:
    """Let go of the host tensors whose copies are over; nothing is waited for."""
    if _in_flight:
        with _guard:
            _in_flight[:] = [(event, tensor) for event, tensor in _in_flight if not event.query()]


def _can_pin(device: torch.device) -> bool:
    """Whether host memory can be pinned for this device; the copies are as right without, only slower."""
    current = torch.accelerator.current_accelerator()
    if current is None or current.type != device.type:
        return False
    try:
        return torch.empty(1, pin_memory=True).is_pinned()
    except (RuntimeError, NotImplementedError):  # an accelerator without an allocator for pinned memory
        return False
