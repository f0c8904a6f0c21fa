"""The page of laws that take ranks has every law, its mutant, and the limits that are declared."""

from __future__ import annotations

from conformance.distributed import mutants
from conformance.distributed.law import all_laws
from conformance.ranked_runs import catalogue
from conformance.rows.results_file import ROOT
from impls.distributed_limits import LIMITS

NAMES = ("nested", "native", "torch-nonreentrant")


def test_the_page_is_that_of_the_laws_and_limits_that_are_there() -> None:
    assert catalogue.check(ROOT) == []


def test_every_law_is_on_the_page_with_its_mutant() -> None:
    lines = {line.split("`")[1]: line for line in catalogue.markdown().splitlines() if line.startswith("| `")}
    assert lines.keys() == all_laws().keys()
    assert all(mutants.catches(law).replace("_", "-") in line for law, line in lines.items())


def test_every_limit_is_of_a_law_that_is_there() -> None:
    assert {law for limits in LIMITS.values() for law in limits} <= all_laws().keys()


def test_nested_and_native_keep_all_that_torchs_nonreentrant_keeps_and_more() -> None:
    ours, natives, torchs = ({law: one.verdict for law, one in LIMITS[name].items()} for name in NAMES)
    assert ours == natives
    assert ours.items() < torchs.items()
