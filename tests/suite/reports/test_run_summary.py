"""The end of a run: what is told of many laws in a line, in which order failures come, and how long all of it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import impls
from conformance.judging.law import LAWS, all_laws
from conformance.judging.verdicts import VALUES
from conformance.reports import ranking
from conformance.reports.nearest_declaration import LEAST, nearest
from conformance.reports.run_summary import (
    LINES,
    MADE_SMALL,
    SCRIPTS,
    Run,
    first_failures,
    nothing_selected,
    program_in,
    summary,
)
from conformance.reproducers.script import script
from tests.support.synthetic_results import row

all_laws()
MASKS, SEED, PENALTY, UNSEEN = (  # everyday, advanced, advanced, adversarial
    "dropout_masks_are_replayed",
    "seeding_inside",
    "second_derivatives",
    "changed_outputs",
)


def worse(law: str, verdict: str = "diverges", **others: Any) -> dict[str, Any]:
    return row(law, "mine", verdict, expected="agrees", **{"cause": "something", "effect": "wrong gradient", **others})


def run(*rows: dict[str, Any], like: str = "nested") -> Run:
    return Run(rows, Path("/nowhere/results.jsonl"), lambda name: f"again --like {name}", like)


def told(found: Run) -> str:
    return "\n".join(summary(found))


@pytest.mark.parametrize(
    ("found", "effect"),
    [
        (row(MASKS, "mine"), ""),
        (worse(MASKS, effect=""), "wrong gradient"),  # by its law
        (worse("generator_state_is_left_alone", effect=""), "wrong state"),
        (worse("generator_state_is_left_alone"), "wrong gradient"),  # by what was seen
        (worse(MASKS, effect="leaked or late memory"), "leaked or late memory"),
        (worse(MASKS, "refuses"), "refused"),
        (worse(MASKS, "crashes"), "crash"),
        (worse(MASKS, rounding=True), "other last bits only"),
        (row(MASKS, "mine", detail="only 3 of 12 cases prove anything"), "not tested"),
        (worse("a_law_of_an_older_suite"), "wrong gradient"),
        (worse("a_law_of_an_older_suite", effect=""), "of unknown consequence"),
    ],
)
def test_an_effect_is_what_was_found_before_what_the_law_is_about(found: dict[str, Any], effect: str) -> None:
    assert ranking.effect(found) == effect


def test_laws_that_are_kept_are_counted_by_tier() -> None:
    rows = [row(MASKS, "mine"), worse("core_programs_equal_plain"), row(SEED, "mine"), row("older", "mine")]
    assert ranking.kept(rows) == "everyday: 1 of 2 kept, advanced: 1 of 1, unknown: 1 of 1"
    assert ranking.lines(rows) == [f"mine: {ranking.kept(rows)}; wrong gradient: 1 everyday"]


def test_the_most_ordinary_failure_of_the_worst_consequence_comes_first() -> None:
    rows = [worse("trees_of_regions", "refuses"), worse(UNSEEN), worse(PENALTY), worse(SEED, effect=""), worse(MASKS)]
    assert [found["law"] for found in run(*rows).failures] == [MASKS, PENALTY, UNSEEN, SEED, "trees_of_regions"]


def test_of_laws_that_are_as_ordinary_those_of_the_family_with_most_failures_come_first() -> None:
    argument = worse("a_function_that_changes_its_argument", family="errors", program="1")
    masks = worse(MASKS, family="rng", program="12")
    assert [one["law"] for one in run(argument, masks).failures] == [argument["law"], MASKS]
    assert run(argument, masks, worse(SEED, family="rng")).failures[0] is argument
    assert run(argument, masks, worse("draws_between_regions", family="rng")).failures[0] is masks


def test_rounding_is_said_once_and_is_no_failure() -> None:
    found = run(worse(MASKS, rounding=True), worse(PENALTY, rounding=True))
    assert found.failures == []
    assert "does not add in plain's order: 2 laws differ in the last bits only (capability exact-sums)" in summary(found)


def test_options_that_are_not_taken_are_one_line() -> None:
    rows = [worse(law, "crashes") for law in ("calls_without_early_stop", "kernels_without_early_stop", "keyword_arguments")]
    found = replace(run(*rows, worse(MASKS)), not_taken={"mine": {"early_stop", "keyword_arguments"}})
    assert [one["law"] for one in found.failures] == [MASKS]
    assert "does not take: early_stop (2 laws), arguments by keyword (1 law)" in summary(found)


def test_an_option_that_is_not_taken_excuses_nothing_else() -> None:
    partly = worse("calls_without_early_stop", "crashes", counts={"crashes": 3, "diverges": 1})
    silent, other = worse("kernels_without_early_stop"), worse("selective_checkpointing", "refuses")
    found = replace(run(partly, silent, other), not_taken={"mine": {"early_stop"}})
    assert {one["law"] for one in found.failures} == {partly["law"], silent["law"], other["law"]}


def test_what_is_not_worse_is_named_and_is_no_failure() -> None:
    untested = row(MASKS, "mine", as_declared=False, detail="only 3", unproven={"nothing was recomputed": 12})
    lines = summary(run(untested, row(SEED, "mine", expected="refuses", as_declared=False)))
    assert f"not tested, since too few cases prove anything: {MASKS}; of most: nothing was recomputed" in lines
    assert f"better than declared: {SEED}" in lines


def test_warnings_are_said_again_where_laws_fail() -> None:
    assert summary(replace(run(worse(MASKS)), warnings=["it drops keywords"]))[0] == "smoke check: it drops keywords"
    assert "it drops keywords" not in told(replace(run(row(MASKS, "mine")), warnings=["it drops keywords"]))


@pytest.mark.parametrize("names", [["mine"], [f"mine{place}" for place in range(7)]])
def test_a_summary_has_at_most_thirty_lines_and_no_line_twice(names: Sequence[str]) -> None:
    rows = [worse(law) | {"impl": name} for name in names for law in LAWS]
    lines = summary(run(*rows))
    assert len(lines) == LINES == len(set(lines))
    assert sum("  and " in line for line in lines) == 1


def test_the_scripts_of_the_first_failures_are_made_small_but_for_those_with_threads() -> None:
    threads = worse(MASKS, program="import threading")
    others = [worse(law) for law in sorted(LAWS)[: MADE_SMALL + 3] if law != MASKS]
    found = run(threads, *others, row(SEED, "mine"))
    expected = [failure["law"] for failure in found.failures if failure is not threads][:MADE_SMALL]
    assert found.first == {("mine", law) for law in expected}


def test_the_first_failures_come_with_what_is_told_of_them() -> None:
    shown = first_failures(run(*(worse(law) for law in LAWS)), lambda found: f"script of {found['law']}")
    assert len(shown) == SCRIPTS
    assert shown[0].startswith("1. wrong gradient, everyday: law ")
    assert shown[0].endswith(f"\nscript of {shown[0].splitlines()[0].rpartition(' ')[2]}")


def test_of_a_script_the_program_alone_is_shown() -> None:
    program = "def run(checkpoint, note, device):\n    note('forward', checkpoint(torch.sin, torch.ones(2)))"
    text = script(program, impls.get("nested"), "law one. It holds.", VALUES)
    assert text.count("def ") > 1
    assert program_in(text) == program
    assert program_in("print()") == "print()"


def judged(name: str, **others: str) -> list[dict[str, Any]]:
    """Rows of something that does what an implementation declares, but for these verdicts, judged by nested's claims."""
    one, rows = impls.get(name), []
    for law in (law for law in LAWS.values() if law.kind == "checkpoint"):
        verdict = others.get(law.name, one.expected(law.name, law.needs))
        fine = verdict == "agrees" or (verdict == "refuses" and impls.get("nested").expected(law.name, law.needs) == "refuses")
        rows.append(row(law.name, "mine", verdict, expected="agrees", as_declared=fine, declared=False, cause="x"))
    return rows


def test_the_nearest_is_whose_declarations_fit_best() -> None:
    rows = judged("reentrant", **{MASKS: "diverges"})
    found = nearest(rows, "nested")
    assert found is not None
    assert found.name == "reentrant"
    assert [one["law"] for one in found.beyond] == [MASKS]
    assert len(found.within) > 50
    assert run(*rows).failures[0]["law"] == MASKS
    assert f"Beyond its known limits: 1. Within them: {len(found.within)}. Judge by its claims: again --like reentrant" in told(
        run(*rows)
    )


def test_what_others_ship_is_nearest_only_if_it_fits_clearly_better() -> None:
    theirs, ours = impls.get("torch-reentrant"), impls.get("reentrant")
    unlike = {
        law.name: theirs.expected(law.name, law.needs)
        for law in LAWS.values()
        if law.kind == "checkpoint" and theirs.expected(law.name, law.needs) != ours.expected(law.name, law.needs)
    }
    few = dict(list(unlike.items())[: len(unlike) // 2 + 1])
    found, theirs_itself = nearest(judged("reentrant", **few), "nested"), nearest(judged("torch-reentrant"), "nested")
    assert found is not None
    assert theirs_itself is not None
    assert (found.name, found.closer, found.few) == ("reentrant", "torch-reentrant", 2 * len(few) - len(unlike))
    assert (theirs_itself.name, theirs_itself.closer, theirs_itself.few) == ("torch-reentrant", "", 0)
    assert ": reentrant (torch-reentrant, by others, fits " in told(run(*judged("reentrant", **few)))


def test_rounding_is_within_the_limits_of_what_does_not_claim_exact_sums() -> None:
    rows = [one | ({"verdict": "diverges", "rounding": True} if one["law"] == MASKS else {}) for one in judged("reentrant")]
    found = nearest(rows, "nested")
    assert found is not None
    assert found.beyond == ()


def test_nothing_is_nearer_than_what_it_is_judged_by_if_that_fits() -> None:
    assert nearest(judged("nested", **{MASKS: "diverges"}), "nested") is None
    assert nearest([one | {"declared": True} for one in judged("reentrant")], "nested") is None


def test_one_whose_limits_explain_little_more_than_half_of_the_failures_is_not_nearest() -> None:
    ours, theirs = impls.get("nested"), impls.get("legacy")
    expected = {law.name: theirs.expected(law.name, law.needs) for law in LAWS.values() if law.kind == "checkpoint"}
    unlike = {name: verdict for name, verdict in expected.items() if verdict != ours.expected(name, LAWS[name].needs)}
    found = nearest(judged("nested", **dict(list(unlike.items())[: len(unlike) * 6 // 10])), "nested")
    whole = nearest(judged("legacy"), "nested")
    assert found is None
    assert whole is not None
    assert whole.name == "legacy"


def test_a_few_laws_do_not_tell_what_is_nearest() -> None:
    assert nearest(judged("reentrant")[: LEAST - 1], "nested") is None


def test_an_expression_that_selects_nothing_gets_names_like_it() -> None:
    said = nothing_selected("keyword_argument and nesded")
    assert said.startswith("-k 'keyword_argument and nesded' selects no law of these implementations; nearest of ")
    assert {"keyword_arguments", "nested"} <= set(said.partition(" names: ")[2].split(", "))
    assert nothing_selected("") == ""
