"""Errors that Python code raises in a backward of the simulated device: they reach whoever asked for the backward.

While such an error unwinds, torch's engine restores the device's stream, and asks the guard of a device that was registered
from Python for its type. That calls Python, which must not be called with an error pending, and the process ends. So the guard
here takes a pending error away, and the engine raises it where it would have come out. Devices of torch's own have guards in
C++ and need none of this.

If backwards on several threads fail at the same time, one may get the other's error.
"""

from __future__ import annotations

from typing import Any

import torch

_taken: list[BaseException] = []


class Guard(torch._C._acc.DeviceGuard):
    """The guard of the device, which has a single stream as far as torch's engine knows."""

    def type_(self) -> Any:
        """The device's type. An error that is pending is taken away."""
        try:
            sum(())  # raises an error that was pending before
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised by the engine
            _taken.append(error)
        return torch._C._autograd.DeviceType.PrivateUse1


class _Engine(torch._C._ImperativeEngine):
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if not _taken:
                raise
        raise _taken.pop()


def carry_errors() -> None:
    """Give torch an engine that raises the errors that the guard takes away."""
    torch.autograd.Variable._execution_engine = _Engine()
