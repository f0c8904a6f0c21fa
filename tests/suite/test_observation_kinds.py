"""What is observed is told by its kind, without numbers, and a run that is not as declared ends with where to look first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.reports.observation_kinds import GRADIENT, cause
from conformance.reports.results_file import ROOT, read_all
from conformance.reports.run_summary import nothing_selected, summary
from conformance.runs.plugin import _declared_in
from tests.support.synthetic_results import row

TENSOR, OTHER = "[0.5, 1e-3] (float32, requires_grad=False)", "[0.25, 0.0] (float32, requires_grad=False)"


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("", ""),
        (f"gradients 0[1][0]: plain {TENSOR}, here {OTHER}", GRADIENT),
        (f"grad[1]: plain {OTHER}, here {TENSOR}", GRADIENT),
        ("gradients 0[1]: dtype torch.float32 under plain, torch.float64 here", GRADIENT),
        (f"grad 0[1][0]: plain {TENSOR}, here None", "a gradient is missing"),
        (f"gradients 1[1][0]: plain None, here {TENSOR}", "there is a gradient where plain has none"),
        (f"forward: plain {TENSOR}, here {OTHER}", "a value of forward differs from plain's"),
        (
            f"stream after backward: plain {TENSOR}, here {OTHER}",
            "what is noted as 'stream after backward' differs from plain's",
        ),
        ("copies to the CPU: expected 3, seen 4", "what is noted as 'copies to the CPU' is not what the law expects"),
        ("f1[0]: requires_grad False under plain, True here", "of what is noted as 'f…', requires_grad differs from plain's"),
        ("kernels of sin: 2 due, 3 seen", "operators run more or less often than is due"),
        ("TypeError: f() got 2 of 'x1'", "raised TypeError: f() got … of …"),
        (
            "RuntimeError: expected m1 and m2 to match, plain is 3",
            "raised RuntimeError: expected m1 and m2 to match, plain is …",
        ),
        ("KeyError: 'out'", "raised KeyError: …"),
        ("the process was ended by SIGSEGV, in f (/tmp/x.py, line 3)", "the process was ended by SIGSEGV"),
        ("the process took more than 4 GiB of memory", "the process took more than … GiB of memory"),
    ],
)
def test_a_detail_is_told_by_its_kind(detail: str, told: str) -> None:
    assert cause(detail) == told


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*-cpu.jsonl")), ids=lambda path: path.stem)
def test_published_details_have_short_causes_that_laws_share(path: Path) -> None:
    details = [row["detail"] for one in read_all(path) for row in one.rows if row["detail"]]
    causes = {cause(detail) for detail in details}
    assert 2 * len(causes) < len(set(details))
    assert all(len(one) <= 120 and not re.search(r"\[[\d.]|tensor\(", one) for one in causes)


def worse(law: str, family: str, program: str, detail: str) -> dict[str, object]:
    return row(law, "mine", "diverges", expected="agrees", family=family, program=program, detail=detail)


WRONG = f"gradients 0[1][0]: plain {TENSOR}, here {OTHER}"
ROWS = [
    worse("masks", "rng", "1", f"forward: plain {TENSOR}, here {OTHER}"),
    worse("streams", "rng", "22", WRONG),
    worse("subsets", "gradients", "333", WRONG),
    row("right", "mine"),
    row("right", "other"),
]


def test_the_end_of_a_run_counts_by_family_and_says_where_to_look_first() -> None:
    assert summary(ROWS).splitlines() == [
        "mine: 3 laws worse than declared; the reason of 2 is: a gradient differs from plain's",
        "  gradients: 1 law, rng: 2 laws",
        f"  look first at streams: diverges, {GRADIENT}",
    ]


def test_the_end_of_a_run_counts_what_is_not_worse_too() -> None:
    untested = row("masks", "mine", as_declared=False, detail="only 3 of 12 cases prove anything, 8 must")
    assert summary([untested, row("streams", "mine", expected="refuses")]).splitlines() == [
        "mine: 1 law not tested (✓ and *), since too few cases prove anything",
        "mine: 1 law with a milder verdict than is due by a declared limit or a missing capability",
    ]
    idle = untested | {"detail": "only 0 of 12 cases prove anything, 8 must: {'nothing was recomputed': 12}"}
    told = "mine: 1 law not tested (✓ and *), since too few cases prove anything; of most: nothing was recomputed"
    assert summary([idle]) == told
    assert summary(ROWS[3:]) == ""


def test_the_end_of_a_run_tells_the_commonest_reason_and_what_nobody_declared() -> None:
    rows = [worse(law, "rng", "", detail) | {"declared": False} for law, detail in (("a", "KeyError: 1"), ("b", "KeyError: 1"))]
    assert summary(rows).splitlines()[0] == "mine: 2 laws worse than claimed; the reason of 2 is: raised KeyError: …"


def test_what_was_told_before_the_first_law_is_said_again_where_laws_fail() -> None:
    assert summary(ROWS, ["it drops keywords"]).splitlines()[-1] == "before the first law: it drops keywords"
    assert summary(ROWS[3:], ["it drops keywords"]) == ""


def test_an_expression_that_selects_nothing_gets_names_like_it() -> None:
    told = nothing_selected("keyword_argument and nesded")
    assert told.startswith("-k 'keyword_argument and nesded' selects no law of these implementations; nearest of ")
    assert {"keyword_arguments", "nested"} <= set(told.partition(" names: ")[2].split(", "))
    assert nothing_selected("") == ""


@pytest.mark.parametrize(
    ("stem", "chosen", "name", "due"),
    [
        ("quick-cpu-m-checkpoint", ["m:checkpoint"], "m:checkpoint", "quick_cpu_m_checkpoint_declared.py"),
        ("quick-cpu-nested-m-a-m-b", ["nested", "m:a", "m:b"], "m:a", "quick_cpu_m_a_declared.py"),
        ("mine", ["m:checkpoint"], "m:checkpoint", "mine_m_checkpoint_declared.py"),
    ],
)
def test_a_declaration_has_the_name_of_what_it_is_about_once(stem: str, chosen: list[str], name: str, due: str) -> None:
    assert _declared_in(stem, chosen, name) == due
