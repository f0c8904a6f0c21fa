"""What an explanation says: where two runs differ, what to do, and what ended the step in which that was seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """Lines that say where two runs differ; false if it says nothing.

    ``remedy`` is what to do, "" if that is not known. ``ended_by`` is the first line of the error that ended the recorded step.
    """

    lines: tuple[str, ...] = ()
    remedy: str = ""
    ended_by: str = ""

    def __bool__(self) -> bool:
        return bool(self.lines or self.remedy or self.ended_by)


NOTHING = Explanation()
