"""The tables of a report: implementations beside plain, and regions; and which times are told, in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reprise.model_check.comparison import TensorsCompared
from reprise.model_check.metering import Costs

if TYPE_CHECKING:
    from reprise.model_check.budgets.choice import RegionCosts, Spread
    from reprise.model_check.report import Report

_TIMES_NOT_TOLD_APART = "their times are below a millisecond, or differ no more than from round to round"
_TOO_SHORT, _TOO_NOISY = "too short to tell", "too noisy to tell"
_SHORTEST_STEP = 1e-3  # seconds of a plain step whose ratios are told
_NARROW = 0.1  # how far a spread may be from a ratio on either side, as a share of it, that is told without
_WIDE = 2.0  # a spread that is larger by this factor at its end tells nothing
_COLUMNS = ("implementation", "verdict", "gradients", "buffers", "calls", "again", "kept", "peak", "FLOPs again", "time")


def results_table(report: Report) -> list[str]:
    """Plain, and each implementation beside it."""
    plain = report.plain
    rows: list[tuple[str, ...]] = [_COLUMNS, ("plain", "", "", "", "", "", *_bytes(plain), "", "1.00")]
    for one in report.results:
        compared = one.first_run
        again = ""
        if one.costs and plain and plain.forward_flops:
            again = f"{one.costs.again_flops / plain.forward_flops:.0%} of forward"
        rows.append(
            (
                one.implementation,
                one.verdict,
                _equal(compared.gradients) if compared else "",
                _equal(compared.buffers) if compared else "",
                *("" if count is None else str(count) for count in (one.calls, one.recomputations)),
                *_bytes(one.costs),
                again,
                ratio_of_times(one.time_ratio, one.time_spread, report.plain_seconds) if one.time_ratio is not None else "",
            )
        )
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["", *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)]


def _equal(part: TensorsCompared) -> str:
    return f"{part.total - len(part.differing) - len(part.missing)}/{part.total} equal"


def _bytes(costs: Costs | None) -> tuple[str, str]:
    return (_amount(costs.kept_bytes), _amount(costs.peak_bytes)) if costs else ("", "")


def _amount(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def is_too_short(plain_seconds: float) -> bool:
    """Whether a plain step takes too little time for a ratio to it to tell anything."""
    return plain_seconds < _SHORTEST_STEP


def _is_noisy(ratio: float, spread: Spread) -> bool:
    return spread[0] < ratio * (1 - _NARROW) or spread[1] > ratio * (1 + _NARROW)


def ratio_of_times(ratio: float, spread: Spread | None, plain_seconds: float) -> str:
    """A ratio of times, with its spread if that is large; in words, if it tells nothing."""
    if is_too_short(plain_seconds):
        return _TOO_SHORT
    if spread is None:
        return f"{ratio:.2f} (of one step)"
    if not _is_noisy(ratio, spread):
        return f"{ratio:.2f}"
    told = f"{ratio:.2f} ({spread[0]:.2f} to {spread[1]:.2f})"
    tells_nothing = spread[0] <= 1 <= spread[1] or spread[1] > _WIDE * spread[0]
    return f"{told}, {_TOO_NOISY}" if tells_nothing else told


def notes_on_time(report: Report) -> list[str]:
    """What is to be known of the column, if times are short or vary."""
    timed = [one for one in report.results if one.time_ratio is not None]
    if timed and is_too_short(report.plain_seconds):
        return [f"a plain step takes {report.plain_seconds * 1e3:.2g} ms here: {_TOO_SHORT} what a step takes beside it"]
    if any(one.time_spread and one.time_ratio and _is_noisy(one.time_ratio, one.time_spread) for one in timed):
        return ["time in brackets: the ratio of quartiles of the few steps that were timed"]
    return []


def regions_table(regions: Sequence[RegionCosts], chosen_by: str) -> list[str]:
    """Regions that were chosen from for a budget, and what they are chosen by."""
    columns = ["region", "kept", "passed to it", "forward"]
    rows = [[one.name, *map(_amount, (one.kept_bytes, one.boundary_bytes)), f"{one.seconds * 1e3:.3g} ms"] for one in regions]
    work = {"FLOPs": [f"{one.flops:,}" for one in regions], "bytes": [_amount(one.made_bytes) for one in regions]}
    if chosen_by not in work:
        return _aligned([columns, *rows])
    table = _aligned([[*columns, chosen_by], *([*row, cell] for row, cell in zip(rows, work[chosen_by], strict=True))])
    return [*table, f"regions are chosen by {chosen_by} of forward: {_TIMES_NOT_TOLD_APART}"]
