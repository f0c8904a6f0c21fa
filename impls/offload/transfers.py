"""The way of tensors between the offload device and the one that computes.

On an accelerator, with the host as offload device, copies run on side streams: the host waits for none of them but
gradients and what forward changed, which it reads. Elsewhere the same calls copy at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from impls.graph.streams import CopyStreams, copy_streams
from impls.torch_private import set_version_counters


class Arrival:
    """Copies on the computing device, and the event after which they are there; None when they already are."""

    __slots__ = ("__weakref__", "copies", "copy_streams", "done")

    def __init__(self, copies: dict[str, torch.Tensor], copy_streams: CopyStreams | None, done: Any) -> None:
        self.copies, self.copy_streams, self.done = copies, copy_streams, done

    def wait(self) -> None:
        """Let the current stream wait for the copies."""
        if self.copy_streams is not None:
            self.copy_streams.module.current_stream(self.copy_streams.device).wait_event(self.done)

    def settle(self) -> None:
        """Let the host wait until the originals are no longer read."""
        if self.copy_streams is not None:
            self.done.synchronize()

    def __del__(self) -> None:
        # The memory belongs to the computing stream, which may give it away at once: it must not be written any more.
        if self.copies:
            self.wait()


class _Loading(threading.local):
    """Whether this thread is loading, in which it reads originals that programs must not."""

    active = False

    @contextmanager
    def on(self) -> Iterator[None]:
        before, self.active = self.active, True
        try:
            yield
        finally:
            self.active = before


_loading = _Loading()


def is_loading() -> bool:
    """Whether what runs on this thread is part of a load."""
    return _loading.active


class Route:
    """Both directions between two devices; picklable, since streams belong to the process."""

    def __init__(self, device: torch.device, offload_device: torch.device) -> None:
        self.device, self.offload_device = device, offload_device

    @property
    def copy_streams(self) -> CopyStreams | None:
        """The side streams, where there are any to use."""
        return copy_streams(self.device) if self.offload_device.type == "cpu" and self.device.type != "cpu" else None

    def load(self, originals: Mapping[str, torch.Tensor]) -> Arrival:
        """Copies on the computing device, at the versions of the originals and without a graph.

        The memory is of the current stream, and copying waits for what that stream has to do now: so what was dropped
        before is used again, and no more is held than was asked for, however far the host runs ahead.
        """
        side = self.copy_streams
        with torch.inference_mode(False), torch.no_grad(), _loading.on():
            copies = {name: torch.empty_like(tensor, device=self.device) for name, tensor in originals.items()}
            if side is None:
                for name, tensor in originals.items():
                    set_version(copies[name].copy_(tensor), tensor)
                return Arrival(copies, None, None)
            free, done = side.module.Event(), side.module.Event()
            free.record(side.module.current_stream(self.device))
            with side.module.stream(side.to_device):
                side.to_device.wait_event(free)
                for name, tensor in originals.items():
                    set_version(copies[name].copy_(tensor, non_blocking=True), tensor)
                done.record(side.to_device)
        return Arrival(copies, side, done)

    def write(self, tensor: torch.Tensor, target: torch.Tensor) -> Any:
        """Write a tensor into one on the offload device; returns the event that the host has to wait for, or None."""
        side = self.copy_streams
        with torch.no_grad():
            if side is None or tensor.device != self.device:
                target.copy_(tensor)
                return None
            written, done = side.module.Event(), side.module.Event()
            written.record(side.module.current_stream(self.device))
            with side.module.stream(side.to_host):
                side.to_host.wait_event(written)
                target.copy_(tensor, non_blocking=True)
                tensor.record_stream(side.to_host)
                done.record(side.to_host)
            return done


def set_version(copy: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """The copy, at the version of the original: a module may keep what it made of a parameter until that changes."""
    if not original.is_inference() and not copy.is_inference():
        set_version_counters((copy,), (original._version,))
    return copy
