"""The page that says which implementation to use is counted from rows: who is right, and by which law the others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.judging.law import all_laws
from conformance.provenance.staleness import OLDER, unmarked
from conformance.reports import ranking
from conformance.reports.answers import TOPICS
from conformance.reports.choice import TRAININGS, markdown
from conformance.reports.editions import editions, entries
from conformance.rows.results_file import Results
from tests.support.synthetic_results import HEADER, row

ABOUT = [name for name in all_laws() if (found := ranking.guide(name)) and {*found.words} & {one.word for one in TOPICS}]
MASKS, AUTOCAST, STATISTICS = "dropout_masks_are_replayed", "autocast_is_forwards", "a_module_updates_its_buffers_once"


def lines(**wrong: set[str]) -> list[str]:
    """The page about implementations that agree under all laws about topics but these."""
    rows = [row(law, name, "diverges" if law in its else "agrees", cause="x") for name, its in wrong.items() for law in ABOUT]
    return shown(*rows).splitlines()


def shown(*rows: dict[str, Any]) -> str:
    return markdown(editions(entries([Results(Path("results/conformance-cpu.jsonl"), HEADER, rows, {})]))[0])


def test_every_training_is_about_topics_and_every_topic_has_a_section() -> None:
    found = lines(mine=set())
    assert {word for one in TRAININGS for word in one.words} <= {one.word for one in TOPICS}
    assert [line for line in found if line.startswith("**")] == [f"**{one.title}.** {one.note}".rstrip() for one in TRAININGS]
    assert {f"## {one.title}" for one in TOPICS} <= {*found}


def test_who_is_silently_wrong_is_told_with_the_law() -> None:
    found = lines(right=set(), wet={MASKS}, cold={AUTOCAST})
    start = found.index(f"**{TRAININGS[1].title}.**")
    assert found[start + 2] == "- right, fewest silent faults first: `right`"
    assert [line.partition(": ")[2].partition(": ")[0] for line in found[start + 3 : start + 5]] == [
        f"`wet`, by `{MASKS}`",
        f"`cold`, by `{AUTOCAST}`",
    ]


def test_laws_about_compiled_regions_decide_nothing_about_eager_ones() -> None:
    compiled, eager = (row(MASKS, name, "diverges", cause="x") for name in ("compiled", "eager"))
    others = [row(AUTOCAST, name) for name in ("compiled", "eager")]
    found = shown(compiled | {"family": "compiled"}, eager, *others)
    assert "| `eager` | ≠ wrong gradient |" in found
    assert "| `compiled` | not judged |" in found


def test_of_those_that_are_right_the_one_with_the_fewest_silent_faults_of_all_comes_first() -> None:
    found = lines(worse={STATISTICS, "second_derivatives"}, better={STATISTICS})
    start = found.index(f"**{TRAININGS[0].title}.**")
    assert found[start + 2].endswith(": `better`, `worse`")
    assert [line.split(" | ")[0] for line in found if line.startswith(("| `better", "| `worse"))] == [
        "| `better`",
        "| `worse`",
    ]


def test_a_cell_tells_the_worst_effect() -> None:
    found = lines(mine={STATISTICS, MASKS})
    cells = next(line for line in found if line.startswith("| `mine`")).strip("| ").split(" | ")
    assert cells == ["`mine`", "≠ wrong gradient", "✓", "✓", "≠ wrong state", "✓", "✓", "2"]


def test_what_was_measured_on_older_code_is_marked() -> None:
    old = row(MASKS, "mine") | {OLDER: ["law"]}
    assert "| `mine`<!-- older --> †" in shown(old)
    assert unmarked(shown(old)) == shown(row(MASKS, "mine"))


def test_results_that_are_about_no_topic_give_no_table() -> None:
    assert shown(row("of_an_older_suite", "mine")) == "No law about these topics was judged."
