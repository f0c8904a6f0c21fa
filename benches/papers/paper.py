"""What a reproduced paper is: claims that become rows, and figures.

Standing of a claim: *exact* does not depend on hardware, and a test asserts it; of a *trend* only the direction is asserted;
*unverified* is a figure that nobody here has read in the original, so it is shown and never asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

REPRODUCED, NOT_REPRODUCED, UNVERIFIED = "reproduced", "not reproduced", "unverified"


@dataclass(frozen=True)
class Row:
    """A claim, what the paper says, what was measured, and the verdict."""

    claim: str
    says: Any
    standing: str
    measured: Any
    verdict: str
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether the claim is exact and did not come out."""
        return self.standing == "exact" and self.verdict != REPRODUCED


def exact(claim: str, *, says: Any, measured: Any, note: str = "") -> Row:
    """A claim that is reproduced when both values are equal, of one type, to the last digit."""
    same = type(says) is type(measured) and says == measured
    return Row(claim, says, "exact", measured, REPRODUCED if same else NOT_REPRODUCED, note)


def trend(claim: str, *, says: Any, measured: Any, holds: bool, note: str = "") -> Row:
    """A claim of which only the direction is asserted: it is reproduced when ``holds``."""
    return Row(claim, says, "trend", measured, REPRODUCED if holds else NOT_REPRODUCED, note)


def unverified(claim: str, *, says: Any, measured: Any = "not measured", note: str = "") -> Row:
    """A claim that was reported, not read: shown, never asserted."""
    return Row(claim, says, "unverified", measured, UNVERIFIED, note)


@dataclass(frozen=True)
class Curve:
    """Points of a figure. ``by`` says whose they are: "paper", "here", or "peer" for another tool run here."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    by: str = "here"
    joined: bool = True

    def __post_init__(self) -> None:
        if self.by not in ("paper", "here", "peer"):
            raise ValueError(f"by is {self.by!r}; it must be 'paper', 'here' or 'peer'")
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.label!r} has {len(self.x)} values of x and {len(self.y)} of y")


@dataclass(frozen=True)
class Figure:
    """A plot: curves over x, or with ``categories`` a bar for each of them and each curve. ``log`` is "", "x", "y" or "xy"."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log: str = ""
    categories: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if self.log not in ("", "x", "y", "xy"):
            raise ValueError(f"log is {self.log!r}; it must be '', 'x', 'y' or 'xy'")
        if not self.curves:
            raise ValueError(f"figure {self.name!r} has no curve")


def no_rows() -> Iterator[Row]:
    """What a paper without further claims has."""
    return iter(())


def no_figures() -> Iterator[Figure]:
    """What a paper without figures has."""
    return iter(())


@dataclass(frozen=True)
class Paper:
    """A paper, and how its claims are measured here.

    ``exact`` gives the rows that tests assert, fast and the same each time; ``more`` gives trends, figures that were only
    reported, and whatever takes long; ``method`` says what was counted, and how.
    """

    name: str
    title: str
    source: str
    method: str
    exact: Callable[[], Iterator[Row]]
    more: Callable[[], Iterator[Row]] = no_rows
    figures: Callable[[], Iterator[Figure]] = no_figures
