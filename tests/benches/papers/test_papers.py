"""Every claim of the literature that hardware does not decide comes out, on this torch, to the integer."""

from __future__ import annotations

import functools
import itertools
import time

import pytest

from benches.papers import NAMES, chen2016, dtr2021, load, rotor2019
from benches.papers.models.residual_network import Bytes
from benches.papers.paper import Claim, Curve, Paper
from impls import schedules

# So many claims at least: a paper whose claims got lost would pass without them.
FLOOR = {
    "chen2016": 10,
    "griewank2000": 11,
    "rotor2019": 9,
    "dtr2021": 5,
    "korthikanti2022": 15,
    "torch_budget": 15,
    "nested90105": 7,
    "offload": 9,
}
KINDS = {"exact", "derived", "difference"}


@pytest.mark.parametrize("name", NAMES)
def test_claims_come_out(name: str) -> None:
    claims = list(load(name).exact())
    assert {claim.kind for claim in claims} <= KINDS
    assert [row for row in (claim.row() for claim in claims) if row.failed] == []
    assert len(claims) >= FLOOR[name]


# Papers of which the rest neither takes long nor is of this machine's times.
@pytest.mark.parametrize("name", ["griewank2000", "korthikanti2022"])
def test_what_no_hardware_decides_holds(name: str) -> None:
    rows = [claim.row() for claim in load(name).more()]
    assert rows
    assert [row for row in rows if row.failed] == []


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_told_apart_and_list_without_being_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "row", None)
    claims = load(name).claims()
    assert len({claim.text for claim in claims}) == len(claims)
    assert all(claim.says is not None or claim.kind in ("derived", "trend") for claim in claims if claim.expected is None)


def test_a_name_that_is_no_papers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no paper 'chen'; there are chen2016, "):
        load("chen")


def claim(paper: Paper, start: str) -> Claim:
    (found,) = (one for one in paper.claims() if one.text.startswith(start))
    return found


def test_half_the_memory_of_the_paper_is_no_reproduction(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = claim(chen2016.PAPER, "ResNet of 1000 layers: memory")
    sizes = iter([137 * 2**30, 10 * 2**30])
    monkeypatch.setattr(chen2016, "_residual", lambda: (range(3), ()))
    monkeypatch.setattr(chen2016, "bytes_of", lambda *_: Bytes(0, next(sizes)))
    row = memory.row()
    assert (row.verdict, row.measured) == ("trend holds, figure differs", "137.0 → 10.0 GiB, 13.7 × less")
    assert not row.failed


def test_only_a_budget_without_a_plan_is_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, expected in ((schedules.Infeasible("budget is 4"), "as expected"), (ValueError("sizes"), "")):

        def refuse(*_: object, error: ValueError = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(schedules, "optimal", refuse)
        none, replay = claim(rotor2019.PAPER, "n = 20, m = 4"), claim(rotor2019.PAPER, "replay")
        if expected:
            assert (none.row().verdict, replay.row().verdict) == (expected, "not as expected")
            continue
        for one in (none, replay):
            with pytest.raises(ValueError, match="sizes"):
                one.row()


def test_times_foreseen_and_taken_are_of_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = rotor2019.pyramid()
    chain = (schedules.Stage(output=1, saved=1),) * len(model)
    monkeypatch.setattr(time, "process_time", functools.partial(next, itertools.count()))
    assert [(stage.forward, stage.backward) for stage in rotor2019.timed(chain, model, images)] == [(1, 1)] * len(model)
    assert rotor2019._seconds(model, schedules.kept(0, len(model)), images) == 1


def test_bounds_of_dtr_are_of_the_sizes_tested() -> None:
    beyond = claim(dtr2021.PAPER, "h_DTR takes more than 3N for N = 1600").row()
    assert beyond.measured > 3 * dtr2021.BEYOND
    for heuristic in ("h_e*", "h_DTR"):
        bound = claim(dtr2021.PAPER, f"{heuristic}: O(N) operations")
        assert "no bound for larger N" in bound.expected
        assert bound.says is not None
        assert bound.says.words.startswith("O(N)")


def test_what_is_drawn_with_2_roots_is_what_they_bound() -> None:
    (figure,) = chen2016.figures()
    curves: dict[str, Curve] = {curve.label: curve for curve in figure.curves}
    root, alive, peak = (curves[label].y for label in ("2√n", "√n segments, alive after forward", "√n segments, peak"))
    assert all(below < bound < above for below, bound, above in zip(alive, root, peak, strict=True))


@pytest.mark.parametrize(
    ("peaks", "faster", "within"), [((9, 10), True, True), ((11, 10), False, True), ((9, 11), False, False)]
)
def test_trends_of_a_measured_chain_fail_if_a_plan_takes_more_than_its_budget(
    peaks: tuple[int, int], faster: bool, within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = rotor2019.Pair(10, (2.0, 1.0), ((2.0, 1.0), (2.0, 1.5)), peaks)
    monkeypatch.setattr(rotor2019, "pairs", lambda: (pair,))
    assert (rotor2019._faster().holds, rotor2019._within().holds) == (faster, within)
