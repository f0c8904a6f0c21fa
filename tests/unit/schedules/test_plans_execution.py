"""Nested regions do with a plan what the interpreter says, with plain autograd's gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from impls.schedules import (
    IllegalPlan,
    Keep,
    Plan,
    Region,
    Stage,
    checkpoint_sequential,
    depth,
    interpret,
    kept,
    revolve,
)
from tests.support.plan_chains import chains, plans, run, sharp, unit_of


@st.composite
def planned(draw: Any) -> tuple[tuple[Stage, ...], Plan]:
    chain = draw(chains())
    return chain, draw(plans(len(chain)))


@settings(max_examples=80, deadline=None)
@given(planned(), st.booleans())
def test_time_memory_and_counts_are_those_of_the_interpreter(case: tuple[tuple[Stage, ...], Plan], early_stop: bool) -> None:
    chain, plan = case
    real = run(chain, lambda layers, x: checkpoint_sequential(layers, plan, x, early_stop=early_stop))
    account = interpret(plan, chain, early_stop=early_stop)
    assert (real.time, real.alive) == (account.time, account.alive)
    assert real.peak == account.peak or (real.peak < account.peak and not sharp(plan, chain))
    assert (real.calls, real.kernels) == (account.calls, account.kernels)


LAYER = Stage(output=1, saved=1, gradient=1, backward_extra=1, needs_output=False)
INSIDE = Region((Region((Keep(0), Keep(1))),)), Region((Region((Keep(2),)),))


@pytest.mark.parametrize("early_stop", [False, True])
def test_what_a_recomputation_that_is_left_early_has_put_into_a_list_is_freed(early_stop: bool) -> None:
    """Found by the test above: the first inner region kept the list, in which the run had put the second one's input."""
    chain, plan = (LAYER, LAYER, unit_of(1), unit_of(1)), (Region(INSIDE), Region((Keep(3),)))
    real = run(chain, lambda layers, x: checkpoint_sequential(layers, plan, x, early_stop=early_stop))
    assert real.peak == interpret(plan, chain, early_stop=early_stop).peak


@settings(max_examples=30, deadline=None)
@given(planned())
def test_gradients_are_plain_autograds_to_the_last_bit(case: tuple[tuple[Stage, ...], Plan]) -> None:
    chain, plan = case
    real = run(chain, lambda layers, x: checkpoint_sequential(layers, plan, x))
    plain = run(chain, lambda layers, x: checkpoint_sequential(layers, kept(0, len(chain)), x))
    assert plain.gradient.count_nonzero()
    assert torch.equal(real.gradient, plain.gradient)


def test_no_frame_holds_the_input_of_a_region_that_is_passed() -> None:
    sizes = (1, 10, 1, 5, 1, 10, 1)
    chain = tuple(
        Stage(output=after, saved=after, gradient=after, needs_output=False, backward_extra=before)
        for before, after in itertools.pairwise(sizes)
    )
    inner = (Keep(0), Region((Keep(1), Keep(2))), Keep(3))
    plan = (Region((Region(inner), Keep(4))), Keep(5))
    real = run(chain, lambda layers, x: checkpoint_sequential(layers, plan, x))
    assert real.peak == interpret(plan, chain).peak == 21


def test_a_module_with_dropout_trains_as_without_a_plan() -> None:
    grads = []
    for plan in (kept(0, 6), (Region((Region((Keep(0), Keep(1))), Keep(2))), Region((Keep(3),)), *kept(4, 6))):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Tanh()) for _ in range(6)))
        checkpoint_sequential(model, plan, torch.ones(4, 8)).square().sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) and one.count_nonzero() for one, other in zip(*grads, strict=True))


def test_values_in_containers_pass_through_regions() -> None:
    x = torch.ones(3, requires_grad=True)
    functions = [lambda x: {"a": x.sin(), "n": 2}, lambda d: (d["a"].exp(), d["n"]), lambda pair: pair[0] * pair[1]]
    checkpoint_sequential(functions, (Region((Keep(0),)), Region((Keep(1), Keep(2)))), x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.sin().exp() * x.cos())


def test_without_grad_mode_a_plan_runs_each_function_once() -> None:
    called: list[int] = []
    with torch.no_grad():
        checkpoint_sequential([called.append] * 3, (Region((Keep(0), Keep(1))), Keep(2)), 7)
    assert called == [7, None, None]


def right(count: int) -> Plan:
    """Each region in the one before: in backward each recomputes all those around it."""
    plan: Plan = (Keep(count - 1),)
    for stage in reversed(range(count - 1)):
        plan = (Keep(stage), Region(plan))
    return plan


@pytest.mark.parametrize("make", [right, lambda count: revolve(count, 1)])
@pytest.mark.parametrize("early_stop", [True, False])
def test_the_deepest_plan_that_is_accepted_runs(make: Any, early_stop: bool) -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"299 regions inside each other.*allows for") as raised:
        checkpoint_sequential([torch.sin] * 300, make(300), x)
    count = int(str(raised.value).split("allows for ")[1].split(".")[0]) + 1
    assert depth(make(count)) == count - 1
    checkpoint_sequential([torch.sin] * count, make(count), x, early_stop=early_stop).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("functions", "plan", "error", "said"),
    [
        (torch.sin, (Keep(0),), TypeError, "functions is of type builtin"),
        ([torch.sin, 3], kept(0, 2), TypeError, r"functions\[1\] is 3"),
        ([torch.sin], [Keep(0)], TypeError, "plan is, or has inside, something of type list"),
        ([torch.sin], (0,), TypeError, "plan holds 0"),
        ([torch.sin] * 2, (Keep(0),), IllegalPlan, "plan runs 1 stages; the chain has 2"),
        ([torch.sin] * 2, (Keep(1), Keep(0)), IllegalPlan, "runs stage 1 where stage 0 is due"),
        ([torch.sin] * 2, (Keep(0), Region((Keep(0), Keep(1)))), IllegalPlan, "runs stage 0 where stage 1 is due"),
        ([torch.sin] * 1, (Keep(0), Region(())), IllegalPlan, "empty region before stage 1"),
    ],
)
def test_what_is_no_plan_for_the_chain_is_refused_before_it_runs(functions: Any, plan: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        checkpoint_sequential(functions, plan, None)


def test_an_error_in_backward_names_the_stages() -> None:
    x = torch.ones(3, requires_grad=True)
    state = [1.0]
    y = checkpoint_sequential([torch.sin, lambda v: v.exp() if state else v.view(3, 1).exp()], (Keep(0), Region((Keep(1),))), x)
    state.clear()
    with pytest.raises(RuntimeError, match="checkpointed region 'stages 1 to 1'"):
        y.sum().backward()
