"""What other tools schedule for a chain of equal steps, where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
from importlib import metadata
from typing import Any


def checkpoint_schedules(length: int, snapshots: int) -> dict[str, int]:
    """Forward steps of a reversal by schedule; empty without ``checkpoint-schedules``."""
    if importlib.util.find_spec("checkpoint_schedules") is None:
        return {}
    tool: Any = importlib.import_module("checkpoint_schedules")
    made = {
        "Revolve": tool.Revolve(length, snapshots),
        "Multistage": tool.MultistageCheckpointSchedule(length, snapshots, 0),
        "Mixed": tool.MixedCheckpointSchedule(length, snapshots),
    }
    counts = dict.fromkeys(made, 0)
    for name, schedule in made.items():
        for action in schedule:
            if isinstance(action, tool.Forward):
                counts[name] += action.n1 - action.n0
            if isinstance(action, tool.EndReverse):  # some go on for another reversal
                break
    return counts


def pyrevolve(length: int, snapshots: int) -> int | None:
    """Forward steps of a reversal that pyrevolve drives; None where it is not installed."""
    if importlib.util.find_spec("pyrevolve") is None:
        return None
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
    """The installed version, "not installed" without one."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
