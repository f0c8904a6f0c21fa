"""Before the matrix the page says what each implementation keeps and which one to use, as counted from the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import impls
from conformance.judging.law import all_laws
from conformance.reports import ranking
from conformance.reports.answers import TOPICS, Answer, Keeps, answers, keeps
from conformance.reports.editions import editions, entries
from conformance.rows.results_file import Results
from impls.distributed_limits import LIMITS
from tests.support.synthetic_results import HEADER, row

MASKS, STREAM, PENALTY, SEED = (
    "dropout_masks_are_replayed",
    "ambient_stream_is_left_alone",
    "second_derivatives",
    "seeding_inside",
)


def edition(*rows: dict[str, Any]) -> Any:
    (found,) = editions(entries([Results(Path("results/conformance-cpu.jsonl"), HEADER, rows, {})]))
    return found


def answer(title: str, *rows: dict[str, Any]) -> Answer:
    (found,) = [one for one in answers(edition(*rows)) if one.topic.title == title]
    return found


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.word)
def test_every_topic_has_laws(topic: Any) -> None:
    words = [found.words for law in all_laws() if (found := ranking.guide(law))]
    assert sum(topic.word in its for its in words) >= 1


def test_an_answer_tells_silent_faults_from_loud_ones_and_costs() -> None:
    verdicts = {"right": "agrees", "loud": "refuses", "wrong": "diverges"}
    rows = [row(MASKS, name, verdict) for name, verdict in verdicts.items()]
    found = answer("Dropout", *rows, row(MASKS, "leaky", "diverges", effect="leaked or late memory"))
    assert found.keep == ("right",)
    assert [[name for name, _ in its] for its in (found.costly, found.loud, found.silent)] == [["leaky"], ["loud"], ["wrong"]]


def test_the_answer_about_ddp_is_what_is_declared_about_the_laws_that_take_ranks() -> None:
    broken = {
        name
        for name, limits in LIMITS.items()
        if name not in impls.PEERS  # the note is about what comes with the suite
        and {
            "ddp_with_shared_weights",
            "ddp_with_several_forwards_before_a_backward",
            "ddp_that_finds_unused_parameters",
        }
        & {*limits}
    }
    assert broken == {"legacy", "reentrant", "torch-reentrant"}
    assert {one for one in LIMITS if one not in impls.PEERS and "fsdp_with_shared_weights" in LIMITS[one]} == broken
    assert all(
        "statistics_over_ranks_are_updated_once" in LIMITS[name] for name in LIMITS if name not in {"plain", *impls.PEERS}
    )
    (note,) = [one.note for one in TOPICS if one.word == "DDP"]
    assert "There legacy, reentrant and torch-reentrant are wrong or raise if regions share a parameter" in note


def test_who_is_silently_wrong_is_not_called_loud() -> None:
    found = answer("Dropout", row(MASKS, "both", "refuses"), row(STREAM, "both", "diverges"))
    assert (found.keep, found.loud) == ((), ())
    assert [(name, len(its)) for name, its in found.silent] == [("both", 1)]


def test_everyday_laws_decide_where_there_are_some() -> None:
    later = row("every_backward_draws_the_same", "mine", "diverges")
    found = answer("Dropout", row(MASKS, "mine"), later)
    assert (found.keep, found.laws) == (("mine",), ((MASKS, later["statement"]),))
    assert found.beyond is not None
    assert [name for name, _ in found.beyond.silent] == ["mine"]
    assert answer("Double backward, gradient penalties", row(PENALTY, "mine")).beyond is None


def test_what_does_no_checkpointing_is_no_answer() -> None:
    assert answers(edition(row(MASKS, "plain"))) == []


def test_what_is_kept_is_counted_by_tier() -> None:
    rows = [row(MASKS, "mine"), row(STREAM, "mine", "diverges"), row(SEED, "mine", "diverges", cause="x"), row(PENALTY, "mine")]
    (table,) = edition(*rows).tables
    assert keeps(table) == [Keeps("mine", "", ((1, 2), (1, 2), (0, 0)), (0, 0, 0))]
