"""What is drawn is counted as it is: every feature and pair of the explorer's own programs, and every hole."""

from __future__ import annotations

import functools
from itertools import combinations

import pytest

import impls
from conformance.coverage import features_page
from conformance.coverage.drawn_features import CLAIMS, COMBINES, Drawn, counted, drawn, generated, holes, possible, total
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, all_laws
from conformance.programs.generator.features import FEATURES
from conformance.programs.program import Program
from conformance.rows.results_file import ROOT

LAWS = all_laws()
COMBINED = "all_claimed_features_combined"
# One law for each class that drawn programs are made into, and one whose programs are in part written by hand.
SOME = (
    "trees_of_regions",
    "any_implementation_inside_any_other",
    "a_retained_backward_keeps_nothing",
    "compiled_regions_equal_plain",
    "every_backward_draws_the_same",
    COMBINED,
)


@functools.cache
def programs(law: str) -> tuple[Program, ...]:
    """The generator's among the programs by which a run of the quick profile judges."""
    found = Explorer("cpu", PROFILES["quick"], 1).programs(LAWS[law], impls.get(CLAIMS[LAWS[law].kind]))
    return tuple(program for one in found if (program := generated(one)))


@functools.cache
def counts(law: str) -> Drawn:
    (found,) = drawn(PROFILES["quick"], 1, [LAWS[law]])
    return found


@pytest.mark.parametrize("law", SOME)
def test_what_is_counted_are_the_programs_that_a_run_draws(law: str) -> None:
    there = programs(law)
    assert there
    assert counts(law).programs == len(there)
    for feature in FEATURES:
        assert counts(law).features[feature] == sum(feature in program.features for program in there)
    for pair in combinations(sorted(FEATURES), 2):
        assert counts(law).pairs[pair] == sum({*pair} <= program.features for program in there)


def test_a_law_whose_programs_are_written_by_hand_is_left_out() -> None:
    assert drawn(PROFILES["quick"], 1, [LAWS["layouts_are_plains"], LAWS["operators_that_a_region_ends_with"]]) == []


def test_every_pair_that_no_program_has_is_a_hole() -> None:
    pair = min(counts(COMBINED).pairs)
    without = counted(COMBINED, [program for program in programs(COMBINED) if not {*pair} <= program.features])
    assert {pair, *holes(counts(COMBINED), COMBINES[COMBINED])} <= {*holes(without, COMBINES[COMBINED])}
    assert {*possible()} == {*holes(counted("none", []))}
    assert f"`{pair[0]}` + `{pair[1]}`" in features_page.markdown([without], "")
    assert f"`{pair[0]}` + `{pair[1]}`" not in features_page.markdown([counts(COMBINED)], "")


def test_a_law_about_all_pairs_that_draws_nothing_has_nothing_but_holes() -> None:
    due = len([*possible(COMBINES[COMBINED])])
    assert f"| `{COMBINED}` | 0 of {due} | 0 | {due} |" in features_page.markdown([counts("trees_of_regions")], "")


def test_a_feature_that_no_law_draws_is_marked() -> None:
    row = f"| `again` | {features_page.HOLE} | {features_page.HOLE} |"
    assert row in features_page.markdown([counts(COMBINED)], "")
    again = counts("backward_again_without_retaining")
    assert row not in features_page.markdown([counts(COMBINED), again], "")
    assert total([counts(COMBINED), again]).features["again"] == again.features["again"] == again.programs


def test_the_page_has_each_feature() -> None:
    page = (ROOT / features_page.SECTION.page).read_text(encoding="utf-8")
    assert all(f"\n| `{feature}` | " in page for feature in FEATURES)
