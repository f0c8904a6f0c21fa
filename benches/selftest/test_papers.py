"""Every exact claim of the literature comes out, on this torch, to the integer."""

from __future__ import annotations

import pytest

from benches.papers import NAMES, load

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


def test_a_name_that_is_no_papers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no paper 'chen'; there are chen2016, "):
        load("chen")
