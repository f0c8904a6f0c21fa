"""Every exact claim of the literature comes out, on this torch, to the integer."""

from __future__ import annotations

import itertools

import pytest

from benches.papers import NAMES, load
from benches.papers.paper import REPRODUCED

# So many exact rows at least: a paper whose claims got lost would pass without them.
FLOOR = {
    "chen2016": 6,
    "griewank2000": 11,
    "rotor2019": 9,
    "dtr2021": 5,
    "korthikanti2022": 8,
    "torch_budget": 15,
    "nested90105": 7,
    "offload": 8,
}


@pytest.mark.parametrize("name", NAMES)
def test_exact_claims_are_reproduced(name: str) -> None:
    rows = list(load(name).exact())
    assert [row for row in rows if row.failed] == []
    assert [row for row in rows if row.standing != "exact"] == []
    assert len({row.claim for row in rows}) == len(rows) >= FLOOR[name]


# How many of a paper's further rows are looked at: those after take long, or are of this machine's times.
TRENDS = {"chen2016": 3, "griewank2000": None, "korthikanti2022": None, "offload": None}
DIFFERENT = {"at most one slice's parameters on the device"}  # by design, as the row's note says


@pytest.mark.parametrize("name", TRENDS)
def test_trends_that_no_hardware_decides_hold(name: str) -> None:
    rows = [row for row in itertools.islice(load(name).more(), TRENDS[name]) if row.standing == "trend"]
    assert {row.claim for row in rows if row.verdict != REPRODUCED} == DIFFERENT & {row.claim for row in rows}
    assert rows or name == "griewank2000"  # which compares with tools that may not be there


def test_a_name_that_is_no_papers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no paper 'chen'; there are chen2016, "):
        load("chen")
