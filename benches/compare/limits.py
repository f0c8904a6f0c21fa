"""What ``nested`` must reach on CUDA: limits of a comparison, beside what was measured.

*Where kernels dominate*, in models of size L, a step takes at most 1.02 times the ideal: plain and the forward work that the
plan repeats. *Where launching kernels dominates*, in small layers, nested adds to the ideal at most 0.4 times what PyTorch's
non-reentrant checkpoint adds. The peak of each is within 2 % of what plain runs of each block alone predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from benches.compare import meters
from benches.compare.measurement import Row, Subject
from benches.models.workloads import device_type
from benches.overhead.peak_bytes import predicted

LARGE = "fused-attention", "attention", "resnet50"
SMALL = "small-layers"
OURS, THEIRS = "nested", "torch-nonreentrant"
OF_IDEAL, OF_THEIRS, OFF = 1.02, 0.4, 0.02
REACHED, NOT_REACHED, NOT_JUDGED = "reached", "not reached", "not judged"
Stored = Mapping[str, Any]


@dataclass(frozen=True)
class Limit:
    """A ratio that must be at most ``most`` and, if that is not None, at least ``least``.

    ``value`` is None where there is none, and ``detail`` says why. It is not ``judged`` where the run was not to measure it.
    """

    name: str
    most: float
    least: float | None = None
    value: float | None = None
    detail: str = ""
    judged: bool = True

    @property
    def verdict(self) -> str:
        if not self.judged:
            return NOT_JUDGED
        reached = self.value is not None and self.value <= self.most and (self.least is None or self.least <= self.value)
        return REACHED if reached else NOT_REACHED


def needs_oracle(row: Row, device: str) -> bool:
    """Whether the peak of this row is held to a limit."""
    return device_type(device) == "cuda" and row.contender == OURS and row.workload in (*LARGE, SMALL)


def oracle(subject: Subject) -> dict[str, Any]:
    """The peak that plain runs of each block alone predict for blocks that are regions, by the device's allocator."""

    def peak(step: meters.Step) -> int:
        return meters.allocated(step, subject.device).peak

    try:
        return {"predicted": predicted(subject.workload, peak)}
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        return {"predicted": None, "unpredicted": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"}


def limits(content: Stored) -> list[Limit]:
    """All limits of a comparison on CUDA, judged or not; none of another device."""
    if device_type(content["device"]) != "cuda":
        return []
    rows = {(row["workload"], row["contender"]): row for row in content["rows"]}
    return [
        *(_of_ideal(content, rows.get((name, OURS)), name) for name in LARGE),
        _of_theirs(rows.get((SMALL, OURS)), rows.get((SMALL, THEIRS))),
        *(_of_oracle(content, rows.get((name, OURS)), name) for name in (*LARGE, SMALL)),
    ]


def _of_ideal(content: Stored, row: Stored | None, name: str) -> Limit:
    title = f"{name}, size L: time of nested / ideal"
    if row is None or content["size"] != "L":
        return Limit(title, OF_IDEAL, judged=False)
    if why := _untimed(row):
        return Limit(title, OF_IDEAL, detail=why)
    low, middle, high = row["ideal_times"]
    return Limit(title, OF_IDEAL, value=middle, detail=f"half of the rounds in {low:.3f} to {high:.3f}")


def _of_theirs(ours: Stored | None, theirs: Stored | None) -> Limit:
    title = f"{SMALL}: what nested adds to the ideal / what {THEIRS} adds"
    if ours is None or theirs is None:
        return Limit(title, OF_THEIRS, judged=False)
    if why := _untimed(ours) or _untimed(theirs):
        return Limit(title, OF_THEIRS, detail=why)
    added, other = (row["ideal_times"][1] - 1 for row in (ours, theirs))
    told = f"nested adds {added:+.1%}, {THEIRS} {other:+.1%}"
    if other <= 0:
        return Limit(title, OF_THEIRS, detail=f"{told}: nothing that ours could be a share of")
    return Limit(title, OF_THEIRS, value=added / other, detail=told)


def _of_oracle(content: Stored, row: Stored | None, name: str) -> Limit:
    title, most, least = f"{name}, size {content['size']}: peak of nested / oracle", 1 + OFF, 1 - OFF
    if row is None:
        return Limit(title, most, least, judged=False)
    if row["status"] != "measured":
        return Limit(title, most, least, detail=f"{row['status']}: {row['detail']}")
    about = content["workloads"][name]
    if about["predicted"] is None:
        return Limit(title, most, least, detail=f"no oracle: {about['unpredicted']}")
    peak, by_oracle = row["allocated"]["peak"], about["predicted"]
    return Limit(title, most, least, value=peak / by_oracle, detail=f"{peak:,} of {by_oracle:,} bytes")


def _untimed(row: Stored) -> str:
    """Why there is no time beside the ideal; "" if there is one."""
    if row["status"] != "measured":
        return f"{row['contender']} {row['status']}: {row['detail']}"
    return "" if row["ideal_times"] else f"{row['contender']} was not timed"


def stored(found: Sequence[Limit]) -> list[dict[str, Any]]:
    """The limits with their verdicts, as they are in a file of results."""
    return [{**asdict(one), "verdict": one.verdict} for one in found]


def table(found: Sequence[Limit]) -> Table | None:
    """The limits that were judged, as they are shown; None where none was."""
    judged = [one for one in found if one.judged]
    made = Table("limit", "measured", "limit", "", "", box=box.SIMPLE_HEAD, pad_edge=False)
    for one in judged:
        span = f"at most {one.most:g}" if one.least is None else f"{one.least:g} to {one.most:g}"
        value = "–" if one.value is None else f"{one.value:.3f}"
        verdict = Text(one.verdict, style="" if one.verdict == REACHED else "bold red")
        made.add_row(one.name, value, span, verdict, Text(one.detail))  # which may have brackets of its own
    return made if judged else None


def notes(found: Sequence[Limit]) -> Iterator[str]:
    """Which limits do not hold, and which ones this run says nothing about."""
    for verdict in (NOT_REACHED, NOT_JUDGED):
        if names := [one.name for one in found if one.verdict == verdict]:
            yield f"{verdict}: {'; '.join(names)}"


def kept(found: Sequence[Limit]) -> bool:
    """Whether every limit that was judged is reached."""
    return all(one.verdict != NOT_REACHED for one in found)
