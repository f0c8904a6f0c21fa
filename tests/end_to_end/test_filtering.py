"""Programs are valid by construction: hardly any that is drawn for a law is thrown away or drawn again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from hypothesis.statistics import collector

from conformance.isolation.compiler_cache import own_compiler_cache
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, Law, all_laws
from conformance.programs.strategies import programs
from impls import Implementation, get

LAWS = all_laws()
CASES = 6
MOST = 0.05  # of the programs that are drawn, as much as may be filtered out
QUICK = PROFILES["quick"]
NESTED = get("nested")
FLAT = replace(NESTED, name="flat", capabilities=NESTED.capabilities - {"nesting"})


def filtered(strategy: st.SearchStrategy[Any], cases: int) -> float:
    """The share of cases in which something was rejected: the case itself, or a part of it that was drawn again.

    Cases that Hypothesis makes out of others and that come to no end are its own affair.
    """
    seen: list[dict[str, Any]] = []
    with cast(Any, collector).with_value(seen.append), suppress(Unsatisfiable):  # then all are invalid
        Explorer("cpu", QUICK, 0).given(strategy, cases, (Phase.generate,), lambda _: None)
    drawn = [case for one in seen for phase in one.values() if isinstance(phase, dict) for case in phase["test-cases"]]
    again = [any(event.startswith(("Retried", "Aborted")) for event in case["events"]) for case in drawn]
    return sum(case["status"] == "invalid" or retried for case, retried in zip(drawn, again, strict=True)) / len(drawn)


def judged(claims: Implementation) -> Iterator[Law]:
    """The laws that these claims are held to; of those that do not nest, the laws whose programs must not."""
    held = (law for law in LAWS.values() if law.kind == claims.kind and not law.lacks("cpu"))
    return held if claims is not FLAT else (law for law in held if not law.may_nest(FLAT))


@pytest.mark.parametrize("claims", [NESTED, FLAT, get("graph"), get("offload")], ids=lambda one: one.name)
def test_no_law_filters_its_programs(claims: Implementation) -> None:
    explorer, shares = Explorer("cpu", QUICK, 0), dict[str, float]()
    with own_compiler_cache():
        for law in judged(claims):
            explorer.forget_others(law)
            each = explorer.strategies(law, claims)
            shares[law.name] = max(filtered(one, max(CASES // len(each), 4)) for one in each)
    assert {name: share for name, share in shares.items() if share > MOST} == {}


@pytest.mark.parametrize("regions", [1, 0])
def test_filtering_is_noticed(regions: int) -> None:
    assert filtered(programs().filter(lambda program: len(program.regions) == regions), 12) > MOST


def test_what_is_not_filtered_is_not_counted() -> None:
    assert filtered(programs(), 60) == 0
