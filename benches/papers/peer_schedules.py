"""What other tools schedule for a chain of equal steps, where they are installed."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Any

MISSING = "not installed"


@functools.cache
def checkpoint_schedules(length: int, snapshots: int) -> Mapping[str, int]:
    """Forward steps of a reversal by schedule. Raises ModuleNotFoundError without ``checkpoint-schedules``."""
    tool: Any = importlib.import_module("checkpoint_schedules")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that numba would make it faster
        made = {
            "Revolve": tool.Revolve(length, snapshots),
            "Multistage": tool.MultistageCheckpointSchedule(length, snapshots, 0),
            "Mixed": tool.MixedCheckpointSchedule(length, snapshots),
        }
        return {name: _forward_steps(tool, schedule) for name, schedule in made.items()}


def _forward_steps(tool: Any, schedule: Any) -> int:
    count = 0
    for action in schedule:
        if isinstance(action, tool.Forward):
            count += action.n1 - action.n0
        if isinstance(action, tool.EndReverse):  # some go on for another reversal
            break
    return count


def pyrevolve(length: int, snapshots: int) -> int:
    """Forward steps of a reversal that pyrevolve drives. Raises ModuleNotFoundError where it is not installed."""
    import numpy as np

    tool: Any = importlib.import_module("pyrevolve")

    class State(tool.Checkpoint):  # type: ignore[misc]
        dtype, size = np.float64, 1

        def get_data(self, timestep: int) -> list[Any]:
            return [np.zeros(1)]

        def get_data_location(self, timestep: int) -> list[Any]:
            return [np.zeros(1)]

        def save(self, pointer: Any) -> None:
            raise NotImplementedError

        load = save

    class Steps(tool.Operator):  # type: ignore[misc]
        count = 0

        def apply(self, **times: int) -> None:
            self.count += times["t_end"] - times["t_start"]

    forward = Steps()
    revolver = tool.MemoryRevolver(State(), forward, Steps(), snapshots, length)
    revolver.apply_forward()
    revolver.apply_reverse()
    return forward.count


def version(distribution: str) -> str:
    """The installed version, MISSING without one."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return MISSING
