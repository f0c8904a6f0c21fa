"""What a reproduced paper is: claims, each measured to a row when its turn comes, and figures.

What a work says and what we expect are separate fields, so that what we derived is never shown as the work's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
AS_EXPECTED, NOT_AS_EXPECTED = "as expected", "not as expected"
HOLDS, HOLDS_BUT, FAILS = "trend holds", "trend holds, figure differs", "trend fails"
DIFFERS, NOT_JUDGED, UNVERIFIED = "differs by design", "not judged", "unverified"

VERDICTS = {
    REPRODUCED: "what the work states, or its formula gives at these sizes, came out to the last digit",
    AS_EXPECTED: "what we derived came out to the last digit; the work states no number for it",
    HOLDS: "it goes the way that the work says; where both have a figure, they are within a tenth of each other",
    HOLDS_BUT: "it goes the way that the work says, and the figures are further than a tenth apart",
    DIFFERS: "ours does something else than the work on purpose, and exactly that",
    NOT_JUDGED: "shown only: what was measured, if anything, is not the quantity that the work measured",
    UNVERIFIED: "shown only: reported, and nobody here has read it in the work",
    NOT_REPRODUCED: "what the work states did not come out",
    NOT_AS_EXPECTED: "what we derived did not come out",
    FAILS: "it does not go the way that the work says",
}
FAILED = frozenset({NOT_REPRODUCED, NOT_AS_EXPECTED, FAILS})
CLOSE = 1.1  # figures of a trend that are further apart than this factor differ


@dataclass(frozen=True)
class Said:
    """What a work says: a formula, a figure or a sentence in our words, and the place where somebody here has read it.

    Without a place nobody here has read it in the work.
    """

    words: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.words} ({self.place})" if self.place else f"reported (unverified): {self.words}"


@dataclass(frozen=True)
class Found:
    """What was measured; of a trend, whether it ``holds``, and the ``figures`` of the work and of ours, of one quantity."""

    value: Any
    note: str = ""
    holds: bool = False
    figures: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """A claim, what the work says, what we expect, what was measured, and the verdict, one of VERDICTS."""

    claim: str
    kind: str
    says: Said | None
    expected: Any
    measured: Any
    verdict: str
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether it makes a run fail."""
        return self.verdict in FAILED


@dataclass(frozen=True)
class Claim:
    """A claim that has not been measured; ``measure`` gives the value, or a Found."""

    text: str
    kind: str
    measure: Callable[[], Any]
    says: Said | None = None
    expected: Any = None
    note: str = ""

    def row(self) -> Row:
        """Measure it."""
        measured = self.measure()
        found = measured if isinstance(measured, Found) else Found(measured)
        note = "; ".join(filter(None, (self.note, found.note)))
        return Row(self.text, self.kind, self.says, self.expected, found.value, self._verdict(found), note)

    def _verdict(self, found: Found) -> str:
        if self.kind == "shown":
            return UNVERIFIED if self.says and not self.says.place else NOT_JUDGED
        if self.kind == "trend":
            return _direction(found)
        same = type(found.value) is type(self.expected) and found.value == self.expected
        right, wrong = {
            "exact": (REPRODUCED, NOT_REPRODUCED),
            "derived": (AS_EXPECTED, NOT_AS_EXPECTED),
            "difference": (DIFFERS, NOT_AS_EXPECTED),
        }[self.kind]
        return right if same else wrong


def _direction(found: Found) -> str:
    if not found.holds:
        return FAILS
    if found.figures is None:
        return HOLDS
    theirs, ours = found.figures
    return HOLDS if theirs / CLOSE <= ours <= theirs * CLOSE else HOLDS_BUT


def exact(text: str, *, says: Said, expected: Any, measure: Callable[[], Any], note: str = "") -> Claim:
    """What the work states: ``expected`` is its number, or its formula's at these sizes, equal to the last digit and in type.

    Raises ValueError for what nobody has read in the work: that is derived, or shown.
    """
    if not says.place:
        raise ValueError(f"claim {text!r} is exact and has no place in the work; it must be derived or shown")
    return Claim(text, "exact", measure, says, expected, note)


def derived(text: str, *, expected: Any, measure: Callable[[], Any], says: Said | None = None, note: str = "") -> Claim:
    """What we derived, equal to the last digit and in type; ``says`` is what in the work it is about, if anything."""
    return Claim(text, "derived", measure, says, expected, note)


def difference(text: str, *, says: Said, expected: Any, measure: Callable[[], Any], note: str = "") -> Claim:
    """What ours does in another way than the work, on purpose: ``expected`` is ours, equal to the last digit and in type."""
    return Claim(text, "difference", measure, says, expected, note)


def trend(text: str, *, measure: Callable[[], Found], says: Said | None = None, expected: Any = None, note: str = "") -> Claim:
    """What is asserted in direction only: by ``holds`` of what is found."""
    return Claim(text, "trend", measure, says, expected, note)


def shown(
    text: str, *, measure: Callable[[], Any] | None = None, says: Said | None = None, expected: Any = None, note: str = ""
) -> Claim:
    """What is not judged: not read in the work, or not measured, or not the same quantity."""
    return Claim(text, "shown", measure or (lambda: "not measured"), says, expected, note)


KINDS = {
    "stated": "a value that the work prints",
    "formula": "a closed form, evaluated",
    "computed": "what a planner, an integer program or an interpreter of plans gives; nothing was run",
    "simulated": "what a simulated runtime decides; nothing was run",
    "measured": "counted or timed while it ran",
}


@dataclass(frozen=True)
class Curve:
    """Points of a figure; ``kind``, one of KINDS, says what they are, and the legend tells it."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: str
    joined: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
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


def no_claims() -> Iterator[Claim]:
    """What a paper without further claims has."""
    return iter(())


def no_figures() -> Iterator[Figure]:
    """What a paper without figures has."""
    return iter(())


@dataclass(frozen=True)
class Paper:
    """A paper, and how its claims are measured here.

    ``exact`` gives the claims that tests assert, fast and the same each time: exact, derived and differences; ``more`` gives
    trends, what is only shown, and whatever takes long. Neither measures anything before a claim's turn. ``method`` says what
    was counted, and how.
    """

    name: str
    title: str
    source: str
    method: str
    exact: Callable[[], Iterator[Claim]]
    more: Callable[[], Iterator[Claim]] = no_claims
    figures: Callable[[], Iterator[Figure]] = no_figures

    def claims(self) -> list[Claim]:
        """All of them, none measured."""
        return [*self.exact(), *self.more()]
