"""The stream that is current on an accelerator, and how to move to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from impls.state import accelerators

_NOTHING = nullcontext()


def current_stream() -> Any:
    """The stream that is current on the accelerator's current device; None without a runtime that has streams."""
    return getattr(accelerators.initialized_module(), "current_stream", _no_stream)()


def _no_stream() -> None:
    return None


def use_stream(wanted: Any) -> AbstractContextManager[Any]:
    """A context in which this stream is current. Each stream waits for the other as work passes over; None changes nothing."""
    present = None if wanted is None else current_stream()
    return _NOTHING if wanted is None or wanted == present else _switch(wanted, present)


@contextmanager
def _switch(wanted: Any, present: Any) -> Iterator[None]:
    wanted.wait_stream(present)
    try:
        with torch.get_device_module(wanted.device).stream(wanted):
            yield
    finally:
        present.wait_stream(wanted)
