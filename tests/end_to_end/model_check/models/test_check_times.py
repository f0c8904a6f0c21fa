"""reprise check: whether its ratios of times can be told is said, in the table and for a budget."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import pytest

from reprise.model_check.checking import _ratio, check
from reprise.model_check.report import Report
from tests.support.checked_models import built

LEGEND = "time in brackets: the ratio of quartiles of the few steps that were timed"


@functools.cache
def checked(steps: int = 2, budget: str | None = None) -> Report:
    return check(built(), impl="nested", steps=steps, budget=budget)


def timed(ratio: float | None, spread: tuple[float, float] | None, plain_seconds: float = 1.0) -> str:
    """The text of a report with these times."""
    (result,) = checked().results
    return str(
        replace(checked(), plain_seconds=plain_seconds, results=(replace(result, time_ratio=ratio, time_spread=spread),))
    )


CELLS = [
    ((1.5, (1.4, 1.6)), "1.50", False),
    ((1.5, (1.3, 1.6)), "1.50 (1.30 to 1.60)", True),
    ((1.5, (1.4, 1.7)), "1.50 (1.40 to 1.70)", True),
    ((0.8, (0.7, 0.8)), "0.80 (0.70 to 0.80)", True),
    ((1.2, (0.9, 1.7)), "1.20 (0.90 to 1.70), too noisy to tell", True),
    ((1.8, (1.1, 2.3)), "1.80 (1.10 to 2.30), too noisy to tell", True),
    ((1.05, (0.99, 1.1)), "1.05", False),
    ((1.5, None), "1.50 (of one step)", False),
    ((1.5, (1.4, 1.6), 9e-4), "too short to tell", False),
    ((1.2, (0.9, 1.7), 9e-4), "too short to tell", False),
    ((None, None), "forward", False),  # the end of the column before
]


@pytest.mark.parametrize(("times", "cell", "has_legend"), CELLS)
def test_a_ratio_is_told_with_its_spread_or_as_none(times: Any, cell: str, has_legend: bool) -> None:
    lines = timed(*times).splitlines()
    (row,) = [one for one in lines if one.startswith("nested   ")]
    assert row.endswith(f" {cell}")
    assert (LEGEND in lines) is has_legend
    told = "a plain step takes 0.9 ms here: too short to tell what a step takes beside it"
    assert (told in lines) is (cell == "too short to tell")


def test_the_spread_is_that_of_quartiles() -> None:
    seconds, plain = [2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    assert _ratio(seconds, plain) == {"time_ratio": 4 / 3, "time_spread": (3 / 4, 5 / 2)}
    assert _ratio([3.0], plain) == {"time_ratio": 1.0, "time_spread": None}


def test_the_spread_is_in_json_beside_the_ratio() -> None:
    (result,) = checked().results
    assert result.time_ratio is not None
    assert result.time_spread is not None
    assert result.time_spread[0] <= result.time_ratio <= result.time_spread[1]
    content = json.loads(checked().as_json())
    assert content["plain_seconds"] == checked().plain_seconds
    assert content["results"][0]["time_ratio"] == result.time_ratio
    assert content["results"][0]["time_spread"] == [*result.time_spread]
    assert checked(1).results[0].time_spread is None


def budgeted(**times: Any) -> str:
    (result,) = checked(1, "100%").results
    assert result.choice is not None
    return str(replace(checked(1, "100%"), results=(replace(result, choice=replace(result.choice, **times)),)))


def test_times_within_a_budget_are_told_in_the_same_way() -> None:
    choice: Any = checked(1, "100%").results[0].choice
    assert choice.time_spread[0] <= choice.time_ratio <= choice.time_spread[1]
    assert choice.time_spread_of_all[0] <= choice.time_ratio_of_all <= choice.time_spread_of_all[1]
    times: dict[str, Any] = {
        "time_ratio": 1.2,
        "time_spread": (1.1, 1.5),
        "time_ratio_of_all": 1.2,
        "time_spread_of_all": (0.9, 1.2),
    }
    told = "    time beside plain's: 1.20 (1.10 to 1.50); with all regions: 1.20 (0.90 to 1.20), too noisy to tell"
    assert told in budgeted(plain_seconds=1.0, **times).splitlines()
    assert "    time beside plain's: too short to tell" in budgeted(plain_seconds=1e-4, **times).splitlines()
