"""The interpreter refuses what is no schedule, naming the step, and accepts every tree whose stages are in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impls.schedules import (
    Action,
    IllegalPlan,
    Keep,
    Plan,
    Region,
    Stage,
    Step,
    depth,
    interpret,
    interpret_steps,
    kept,
    require_order,
    stages,
    steps,
    text,
    unit_chain,
)
from tests.support.plan_chains import every_plan, plans

KEEP, STORE, PASS, CUT, STOP, BACK = Action
SHORT = {KEEP: "K", STORE: "S", PASS: "P", CUT: "C", STOP: "X", BACK: "B"}
PLAN: Plan = (Region((Keep(0), Region((Keep(1), Keep(2))))), Keep(3))


def schedule(*written: str) -> list[Step]:
    actions = {letter: action for action, letter in SHORT.items()}
    return [Step(actions[word[0]], int(word[1:])) for word in written]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6).flatmap(plans), st.booleans())
def test_every_plan_in_order_is_legal(plan: Plan, early_stop: bool) -> None:
    count = len(list(stages(plan)))
    require_order(plan, count)
    interpret(plan, unit_chain(count), early_stop=early_stop)


def _legal(plan: Plan, count: int) -> bool:
    try:
        interpret(plan, unit_chain(count))
    except IllegalPlan:
        return False
    return True


def test_of_all_orders_of_stages_the_interpreter_accepts_the_chains_alone() -> None:
    for first, second, third in itertools.product(range(4), repeat=3):
        for plan in ((Keep(first), Keep(second), Keep(third)), (Region((Keep(first), Keep(second))), Keep(third))):
            assert _legal(plan, 3) == ((first, second, third) == (0, 1, 2))


def test_a_plan_of_a_longer_or_shorter_chain_is_refused() -> None:
    with pytest.raises(IllegalPlan, match=r"step 3, forward that keeps all of stage 2: the chain has 2 stages"):
        interpret(kept(0, 3), unit_chain(2))
    with pytest.raises(IllegalPlan, match=r"step 3, backward of stage 1: the first forward has not come to the end"):
        interpret(kept(0, 2), unit_chain(3))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (("P1",), r"step 1, forward that keeps nothing of stage 1: its input is neither stored"),
        (("P0", "K1", "B1", "B0"), r"step 4, backward of stage 0: what the stage saves for backward is not stored"),
        (("K0", "B0"), r"step 2, backward of stage 0: the first forward has not come to the end"),
        (("K0", "K1", "B0"), r"step 3, backward of stage 0: the gradient there is that for stage 1"),
        (("K0", "K1", "B1", "B1"), r"step 4, backward of stage 1: the gradient there is that for stage 0"),
        (("K0", "K0"), r"step 2, forward that keeps all of stage 0: what the stage saves .* is stored already"),
        (("K0", "K1", "B1"), r"the schedule ends after step 3, before the backward of stage 0"),
        ((), r"the schedule ends after step 0, before the backward of stage 1"),
        (("K-1",), r"step 1, .* of stage -1: the chain has 2 stages"),
    ],
)
def test_an_illegal_step_is_named(written: tuple[str, ...], said: str) -> None:
    with pytest.raises(IllegalPlan, match=said):
        interpret_steps(schedule(*written), unit_chain(2))


def test_a_value_that_was_passed_over_is_gone() -> None:
    with pytest.raises(IllegalPlan, match=r"step 5, forward that keeps all of stage 1: its input is neither stored"):
        interpret_steps(schedule("S0", "P1", "K2", "B2", "K1"), unit_chain(3))
    interpret_steps(schedule("S0", "S1", "K2", "B2", "K1", "B1", "K0", "B0"), unit_chain(3))


def test_the_output_that_a_stage_keeps_for_itself_can_be_run_from() -> None:
    chain = (Stage(), Stage(), Stage())
    interpret_steps(schedule("K0", "P1", "K2", "B2", "K1", "B1", "B0"), chain)
    with pytest.raises(IllegalPlan, match="step 5"):
        interpret_steps(schedule("K0", "P1", "K2", "B2", "K1", "B1", "B0"), unit_chain(3))


def test_steps_are_those_that_nested_regions_take() -> None:
    def written(early_stop: bool) -> str:
        return " ".join(f"{SHORT[step.action]}{step.stage}" for step in steps(PLAN, early_stop=early_stop))

    assert written(True) == "S0 P1 P2 K3 B3 K0 X1 K1 C2 B2 B1 B0"
    assert written(False) == "S0 P1 P2 K3 B3 K0 S1 P2 K1 K2 B2 B1 B0"


def test_an_input_that_is_not_read_goes_unless_a_region_holds_it() -> None:
    chain = (Stage(needs_output=False), Stage(needs_input=False), Stage(needs_output=False))
    assert interpret(kept(0, 3), chain).alive == 2  # what stages 1 and 2 give
    interpret_steps(schedule("K0", "K1", "K2", "B2", "B1", "B0"), chain)
    with pytest.raises(IllegalPlan, match="step 3, forward that keeps nothing of stage 1: its input is neither stored"):
        interpret_steps(schedule("K0", "K1", "P1", "K2", "B2", "B1", "B0"), chain)
    interpret_steps(schedule("K0", "S1", "K2", "B2", "K1", "P1", "B1", "B0"), chain)


@pytest.mark.parametrize("plan", [(Region(()), Keep(0)), (Region((Region(()), Keep(0))),), (Keep(0), Region(()))])
def test_an_empty_region_is_refused(plan: Plan) -> None:
    with pytest.raises(IllegalPlan, match="empty region"):
        interpret(plan, unit_chain(1))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: Keep(0.0), TypeError, "stage is 0.0; it must be an int"),  # type: ignore[arg-type]
        (lambda: Keep(-1), ValueError, "stage is -1"),
        (lambda: Step("backward", 0), TypeError, "action is 'backward'; it must be an Action"),  # type: ignore[arg-type]
        (lambda: interpret([Keep(0)], unit_chain(1)), TypeError, "type list; it must be a tuple of Keep"),  # type: ignore[arg-type]
        (lambda: interpret((Keep(0),), [3]), TypeError, r"chain\[0\] is 3; it must be a Stage"),  # type: ignore[list-item]
        (lambda: interpret_steps([0], unit_chain(1)), TypeError, "schedule holds 0; it must be of Steps"),  # type: ignore[list-item]
        (lambda: unit_chain(-1), ValueError, "count is -1"),
    ],
)
def test_what_is_no_plan_step_or_chain_is_named(call: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_what_a_plan_costs_by_hand() -> None:
    chain = tuple(Stage(forward=10**index, backward=1, output=1, saved=3, gradient=1) for index in range(4))
    account = interpret(PLAN, chain)
    # Forward: 1111. The outer region again: 1, stopped at the inner one; that again: 10 and 100. Backward: 4.
    assert (account.time, account.calls, account.kernels) == (1111 + 1 + 110 + 4, 7, 7)
    assert account.alive == 1 + 3  # the input of stage 3, and what it keeps
    assert account.peak == 3 + 3 + 3 + 1  # what stages 0 to 2 keep, and a gradient
    assert account.inputs == 1


def test_a_plan_is_told_in_one_line() -> None:
    assert text(PLAN) == "[0 [1 2]] 3"
    assert text((Region((Region((Keep(0),)),)), Region((Keep(1),)))) == "[[0]] [1]"
    assert len({text(plan) for plan in every_plan(0, 4)}) == sum(1 for _ in every_plan(0, 4)) == 352
    assert depth(PLAN) == 2


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"output": 1.5}, TypeError, "output is 1.5; it must be an int"),
        ({"gradient": -1}, ValueError, "gradient is -1"),
        ({"forward": float("nan")}, ValueError, "forward is nan"),
        ({"backward": float("inf")}, ValueError, "backward is inf"),
        ({"output": 3, "saved": 2}, ValueError, "saved is 2; it contains the output"),
        ({"stops_early": True}, ValueError, "stops_early is True"),
        ({"forward": "1"}, TypeError, "forward is '1'; it must be a number"),
        ({"backward": True}, TypeError, "backward is True; it must be a number"),
    ],
)
def test_numbers_that_no_stage_has_are_refused(fields: dict[str, float], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Stage(**fields)  # type: ignore[arg-type]
