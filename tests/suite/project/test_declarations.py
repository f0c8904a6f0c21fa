"""What implementations declare is about laws that exist, and says why."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import conformance
import impls
from conformance.judging.judge import execute
from conformance.judging.law import LAWS
from conformance.judging.verdicts import difference
from conformance.programs.program import Named
from conformance.reproducers.script import MODULES
from impls.torch_private import POLICIES_ASK_FOR_HOOKS

for path in (Path(conformance.__file__).parent / "laws").glob("test_*.py"):
    importlib.import_module(f"conformance.laws.{path.stem}")


def _is_there(peer: impls.Peer) -> bool:
    try:
        return bool(peer.load())
    except ValueError:
        return False


THERE = (*impls.names(), *(name for name, peer in impls.PEERS.items() if _is_there(peer)))


@pytest.mark.parametrize("name", THERE)
def test_known_limits_are_of_laws_that_exist(name: str) -> None:
    assert impls.get(name).known.keys() <= LAWS.keys()


@pytest.mark.parametrize("name", THERE)
def test_known_limits_have_reason_and_source(name: str) -> None:
    assert all(len(limit.reason.split()) > 2 and limit.source for limit in impls.get(name).known.values())


@pytest.mark.parametrize("name", THERE)
def test_effects_of_known_limits_are_those_of_their_laws(name: str) -> None:
    limits = impls.get(name).known.items()
    assert [law for law, limit in limits if limit.effect and limit.effect not in LAWS[law].effects] == []


@pytest.mark.parametrize("name", THERE)
def test_a_known_verdict_is_not_the_claimed_one(name: str) -> None:
    implementation = impls.get(name)
    claimed = {law: "agrees" if LAWS[law].needs <= implementation.capabilities else "refuses" for law in implementation.known}
    assert [law for law, limit in implementation.known.items() if limit.verdict == claimed[law]] == []


def test_nested_has_no_known_limits_but_these_and_another_with_an_older_torch() -> None:
    limits = {
        "a_module_updates_its_buffers_once",
        "scripted_functions_that_save_in_another_order",
        "what_a_function_switches_back_on_a_module",
        "what_is_drawn_after_what_a_policy_keeps",
        "weights_cached_around_forward",
        "containers_that_an_inner_region_alone_is_passed",
        "masks_in_graphs_that_are_not_compiled",
        "masks_within_a_memory_budget",
        "less_budget_peaks_no_higher",
        "what_is_computed_from_a_tensor_that_is_replaced",
        "containers_whose_tensors_are_watched",
        "buffers_that_the_function_replaces",
        "hooks_that_remove_themselves",
        "outputs_that_their_own_region_reaches_are_freed",
        "arguments_overwritten_with_the_output_are_freed",
        "what_a_function_detaches_is_freed",
        "results_that_an_inner_function_keeps_are_freed",
        "gradients_are_no_weights",
        "a_saved_leaf_is_itself",
        "higher_order_operators_write_once",
        "kept_results_that_change_where_no_version_tells",
        "kept_results_that_may_be_changed_and_are_read",
    }
    older = set() if POLICIES_ASK_FOR_HOOKS else {"hooks_get_what_a_policy_keeps_if_asked_to"}
    assert impls.get("nested").known.keys() == limits | older


def _trained(checkpoint: Any, note: Any, device: str) -> None:
    x, w = (torch.tensor(value, device=device, requires_grad=True) for value in ([[1.0, 2.0]], [[1.0, 0.5], [0.0, -1.0]]))
    note("leaves", (x, w))

    def region(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (h @ w).sin().exp()

    y = checkpoint(region, x, w)
    note("forward", y)
    y.sum().backward()
    note("gradients", [x.grad, w.grad])


@pytest.mark.parametrize("name", [name for name in THERE if impls.get(name).kind == "checkpoint"])
def test_what_scripts_bind_does_what_is_judged(name: str) -> None:
    """Not checked is what the one and the other do with arguments that are wrong."""
    implementation, bound = impls.get(name), {name: importlib.import_module(name) for name in (*MODULES, "torch")}
    exec(implementation.importing("checkpoint"), bound)
    one, other = (execute(Named(_trained), one, "cpu") for one in (bound["checkpoint"], implementation.checkpoint))
    if "use --device cuda" in str(one.error):
        assert str(one.error) == str(other.error)
        pytest.skip("it computes on CUDA alone")
    assert one.error is other.error is None
    assert one.calls == other.calls
    assert [difference(value, other.notes[label], label) for label, value in one.notes.items()] == [None] * 2
