"""What is proposed as a declaration, pasted as it stands, is as declared; and claims are what the laws have shown."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.law import LAWS, Law, Profile
from conformance.judging.result import Result
from conformance.reports import proposed_declaration as declaring
from conformance.reports.proposed_declaration import Declaration, declaration, written
from impls import Implementation

for module in ("structure", "rng", "gradients", "errors", "nesting", "changes", "autocast", "interruptions"):
    importlib.import_module(f"conformance.laws.test_{module}")

NESTED = impls.get("nested")
PROFILE = Profile(12, 0, False)
CHOSEN = (
    "keyword_arguments",
    "trees_of_regions",
    "containers_as_arguments",
    "non_tensor_arguments",
    "keyword_arguments_that_are_false",
    "outputs_without_grad",
    "the_same_call_again",
    "dropout_masks_are_replayed",
    "ambient_stream_is_left_alone",
    "seeding_inside",
    "explicit_generators_are_replayed",
    "explicit_generators_by_keyword",
    "core_programs_equal_plain",
    "autograd_grad_of_any_subset",
    "second_derivatives",
    "all_claimed_features_combined",
    "changes_between_forward_and_backward",
)


@functools.cache
def explorer(law: str) -> Explorer:
    """One for each law, since it keeps the programs of the law that it judged by last."""
    return Explorer("cpu", PROFILE, 0)


def hold(law: Law, implementation: Implementation, claims: Implementation) -> Result:
    return explorer(law.name).hold(law, implementation, claims)


def proposed(reference: str, laws: list[Law], like: Implementation = NESTED) -> Declaration:
    """The declaration of a callable that declares nothing, after a run of these laws."""
    bare = impls.load(reference)
    rows = [hold(law, bare, like).row() for law in laws]
    return declaration(rows, like, lambda law, claims: hold(law, bare, claims).row(), "seen here")


def pasted(text: str) -> Implementation:
    scope: dict[str, Any] = {}
    exec(text, scope)
    return scope["IMPLEMENTATION"]


active: list[Any] = []


def unnested(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A checkpoint that refuses to be called inside of another."""
    if active:
        raise NotImplementedError("a checkpoint inside of another is not supported")

    def entered(*args: Any, **kwargs: Any) -> Any:
        active.append(function)
        try:
            return function(*args, **kwargs)
        finally:
            active.pop()

    return NESTED.checkpoint(entered, *args, **kwargs)


# What each may not claim, and the laws of a run that shows it; the first one's shows how laws of all sorts go together.
FAKES: dict[str, tuple[set[str], Sequence[str]]] = {
    "impls.legacy:checkpoint": (
        {"rng", "keyword-arguments", "containers", "non-tensor-arguments", "exact-sums", "subset-requests"},
        CHOSEN,
    ),
    "torch.utils.checkpoint:checkpoint": (
        {"keyword-arguments", "subset-requests", "higher-order", "explicit-generators"},
        (
            "keyword_arguments",
            "autograd_grad_of_any_subset",
            "second_derivatives",
            "explicit_generators_are_replayed",
            "core_programs_equal_plain",
            "changes_between_forward_and_backward",
        ),
    ),
    "impls.peers.torch_nonreentrant:IMPLEMENTATION.checkpoint": (
        {"explicit-generators"},
        ("explicit_generators_are_replayed", "changes_between_forward_and_backward", "all_claimed_features_combined"),
    ),
    "impls.plain:checkpoint": ({"recomputes"}, ("keyword_arguments", "seeding_inside", "second_derivatives")),
}


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint")
@pytest.mark.parametrize("reference", FAKES)
def test_what_is_pasted_is_as_declared(reference: str) -> None:
    lacking, names = FAKES[reference]
    laws = [LAWS[name] for name in names]
    found = proposed(reference, laws=laws)
    assert found.settled
    assert found.untested == {}
    text = written(found, reference, "on few programs")
    record = pasted(text)
    assert not lacking & record.capabilities
    again = [hold(law, record, record) for law in laws]
    assert [(one.law.name, str(one.verdict), record.known.get(one.law.name)) for one in again if not one.as_declared] == []
    assert all(limit.reason and limit.source == "seen here" for limit in record.known.values())
    assert pasted(written(found, reference, "twice")) == record


def test_one_that_does_not_nest_lacks_that_alone() -> None:
    some = ("keyword_arguments", "trees_of_regions", "dropout_masks_are_replayed", "core_programs_equal_plain")
    found = proposed(f"{__name__}:unnested", laws=[LAWS[name] for name in some])
    assert set(NESTED.capabilities - found.claims.capabilities) == {"nesting"}
    assert found.claims.known == {}
    assert found.settled


def test_what_is_right_needs_no_entry() -> None:
    found = proposed("impls.nested:checkpoint", laws=[LAWS[name] for name in CHOSEN[:5]])
    assert (found.claims.capabilities, found.claims.known) == (NESTED.capabilities, {})
    assert "known" not in written(found, "impls.nested:checkpoint", "on few programs")


def row(law: str, verdict: str, detail: str = "") -> dict[str, Any]:
    return {"law": law, "verdict": verdict, "detail": detail, "cause": detail, "unproven": {}}


def fewest(*rows: dict[str, Any]) -> set[str]:
    """The capabilities that are dropped."""
    return set(NESTED.capabilities - declaring._fewest_limits(NESTED.capabilities, {one["law"]: one for one in rows}))


def test_a_capability_is_dropped_where_that_explains_refusals() -> None:
    assert fewest(row("keyword_arguments", "refuses", "TypeError: no")) == {"keyword-arguments"}
    assert fewest(row("keyword_arguments", "agrees")) == set()


def test_of_two_capabilities_the_one_that_another_law_shows_is_kept() -> None:
    both = row("keyword_arguments_that_are_false", "refuses", "TypeError: no")  # needs keyword and non-tensor arguments
    assert fewest(both, row("non_tensor_arguments", "agrees")) == {"keyword-arguments"}
    assert fewest(both, row("keyword_arguments", "agrees")) == {"non-tensor-arguments"}


def test_a_capability_that_most_laws_show_is_kept() -> None:
    agreeing = [row(law, "agrees") for law in ("dropout_masks_are_replayed", "ambient_stream_is_left_alone")]
    assert fewest(*agreeing, row("seeding_inside", "refuses")) == set()


def test_a_capability_that_no_law_shows_is_not_claimed() -> None:
    assert fewest(row("dropout_masks_are_replayed", "diverges"), row("seeding_inside", "diverges")) == {"rng"}


def test_a_capability_is_not_claimed_for_what_is_kept_without_it() -> None:
    by_chance = [row(law, "agrees") for law in ("an_error_leaves_autocast", "an_autocast_cache_that_a_function_switches")]
    assert fewest(row("autocast_is_forwards", "diverges"), *by_chance) == {"autocast"}


def test_what_proves_too_little_shows_no_capability() -> None:
    assert fewest(row("selective_checkpointing", "agrees", "only 1 of 12 cases prove anything")) == {"context-fn"}


def always(verdicts: list[str]) -> Any:
    """Holds to every law with the next of these verdicts, again and again."""
    given: Counter[str] = Counter()

    def hold(law: Law, claims: Implementation) -> dict[str, Any]:
        given[law.name] += 1
        return row(law.name, verdicts[given[law.name] % len(verdicts)], "what was seen")

    return hold


def test_claims_that_go_on_changing_are_told() -> None:
    law = "all_claimed_features_combined"
    found = declaration([row(law, "crashes", "at first")], NESTED, always(["crashes", "refuses"]), "seen here")
    assert not found.settled
    assert "# Not settled" in written(found, "a:b", "never")


def test_what_is_kept_without_a_capability_that_it_needs_is_judged_again_by_the_claims() -> None:
    def hold(law: Law, claims: Implementation) -> dict[str, Any]:
        return row(law.name, "agrees" if law.needs <= claims.capabilities else "refuses", "seen")

    rows = [row("autocast_is_forwards", "diverges", "seen"), row("an_error_leaves_autocast", "agrees")]
    found = declaration(rows, NESTED, hold, "seen here")
    assert "autocast" not in found.claims.capabilities
    assert set(found.claims.known) == {"autocast_is_forwards"}
    assert found.settled


def test_what_was_not_tested_is_told() -> None:
    untested = row("unused_outputs", "agrees", "only 3 of 12 cases prove anything, 8 must: {'all gradients are zero': 9}")
    found = declaration([untested], NESTED, always(["agrees"]), "seen here")
    assert "# Not tested, whatever is declared: law unused_outputs, only 3 of 12" in written(found, "a:b", "once")


def test_more_than_the_other_claims_is_not_said_of_sums() -> None:
    modest = replace(NESTED, capabilities=NESTED.capabilities - {"exact-sums"})
    found = declaration([row("unused_outputs", "agrees")], modest, always(["agrees"]), "seen here")
    assert found.claims.capabilities == modest.capabilities


@pytest.mark.parametrize(("kind", "subject"), [("graph", "graph"), ("offload", "OffloadModel")])
def test_other_kinds_are_written_with_what_they_provide(kind: impls.Kind, subject: str) -> None:
    claims = Implementation("it", kind=kind, provides=st)
    text = written(Declaration(claims, (), True), "torch.autograd:graph", "never")
    record = pasted(text)
    assert (record.kind, record.name) == (kind, "torch-autograd-graph")
    assert record.importing(subject) == f"import torch.autograd\n\n{subject} = torch.autograd.graph"
