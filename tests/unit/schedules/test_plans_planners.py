"""Planners emit legal plans of the cost that they promise, and none is below what a search over all plans finds."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impls.schedules import (
    Account,
    Infeasible,
    Plan,
    Stage,
    advances,
    binary,
    greedy,
    interpret,
    kept,
    least_memory,
    optimal,
    recursive,
    require_order,
    revolve,
    searched,
    sqrt_segments,
    text,
    uniform,
    unit_chain,
)
from tests.support.plan_chains import chains, every_plan

all_plans = functools.cache(lambda count: list(every_plan(0, count)))
Chain = tuple[Stage, ...]


def accounts(chain: Chain, early_stop: bool) -> list[Account]:
    return [interpret(plan, chain, early_stop=early_stop) for plan in all_plans(len(chain))]


@settings(max_examples=40, deadline=None)
@given(chains(most=4, exact=False), st.booleans(), st.integers(0, 12))
def test_optimal_is_the_fastest_of_all_plans_within_the_budget(chain: Chain, early_stop: bool, more: int) -> None:
    every = accounts(chain, early_stop)
    budget = min(account.peak for account in every) + more
    plan = optimal(chain, budget, early_stop=early_stop)
    require_order(plan, len(chain))
    found = interpret(plan, chain, early_stop=early_stop)
    assert found.peak <= budget
    assert found.time == min(account.time for account in every if account.peak <= budget)


GRADIENT_IN_FORWARD = (
    Stage(forward=4, output=3, saved=6, keeping_extra=6, passing_extra=8),
    Stage(forward=4, saved=4),
    Stage(forward=0, output=3, saved=6),
    Stage(forward=0, gradient=4, keeping_extra=6),
)
PASSING = (
    Stage(forward=0, output=3, saved=6, keeping_extra=6),
    Stage(forward=0, output=3, saved=3, passing_extra=8),
    Stage(forward=4, saved=4),
    Stage(forward=4, saved=4),
)


@pytest.mark.parametrize(("chain", "budget", "plan"), [(GRADIENT_IN_FORWARD, 20, "0 1 [2] 3"), (PASSING, 13, "[0] 1 [2] 3")])
def test_optimal_where_one_inequality_alone_decides(chain: Chain, budget: int, plan: str) -> None:
    assert text(optimal(chain, budget)) == plan
    fastest = min(account.time for account in accounts(chain, True) if account.peak <= budget)
    assert interpret(optimal(chain, budget), chain).time == fastest


# Of each, one rule for inputs that are not read decides: what follows has the room, so has the stage's backward, a stage
# that reads its output leaves no loose input and so on. All were found by a search for what tells a wrong rule.
NOT_READ = (
    (
        (
            Stage(saved=4, gradient=0, passing_extra=3, needs_input=False),
            Stage(forward=0, needs_input=False),
            Stage(forward=4, output=0, saved=0, gradient=0, passing_extra=3, backward_extra=4, needs_output=False),
        ),
        5,
    ),
    (
        (
            Stage(output=0, saved=0, gradient=0, backward_extra=4, needs_input=False),
            Stage(output=3, saved=3, gradient=0),
            Stage(forward=4, output=2, saved=2, backward_extra=4, needs_output=False, needs_input=False),
        ),
        5,
    ),
    (
        (
            Stage(forward=0, output=0, saved=0, needs_output=False),
            Stage(forward=4, saved=4, gradient=0, passing_extra=3, backward_extra=4, needs_output=False, needs_input=False),
            Stage(forward=0, output=3, saved=6, gradient=0, needs_input=False),
            Stage(forward=0, output=2, saved=5, passing_extra=3, backward_extra=4, needs_output=False, needs_input=False),
        ),
        9,
    ),
    (
        (
            Stage(forward=4, passing_extra=3, needs_output=False),
            Stage(gradient=0, needs_output=False, needs_input=False),
            Stage(forward=4, output=2, saved=2, needs_input=False),
            Stage(forward=0, output=2, saved=2, gradient=0, passing_extra=3),
        ),
        4,
    ),
    (
        (
            Stage(forward=4, backward_extra=4, needs_input=False),
            Stage(forward=0, output=0, saved=0, gradient=0, passing_extra=3, needs_output=False, needs_input=False),
            Stage(
                forward=0,
                output=3,
                saved=6,
                gradient=0,
                passing_extra=3,
                backward_extra=4,
                needs_output=False,
                needs_input=False,
            ),
        ),
        7,
    ),
)


@pytest.mark.parametrize(("chain", "budget"), NOT_READ)
def test_planners_where_an_input_that_is_not_read_decides(chain: Chain, budget: int) -> None:
    every = accounts(chain, True)
    least = interpret(least_memory(chain), chain).peak
    assert least == min(account.peak for account in every)
    for room in (least, budget):
        fastest = min(account.time for account in every if account.peak <= room)
        assert interpret(optimal(chain, room), chain).time == fastest


@settings(max_examples=40, deadline=None)
@given(chains(most=4, exact=False), st.booleans())
def test_least_memory_is_the_least_of_all_plans_and_optimal_says_it(chain: Chain, early_stop: bool) -> None:
    least = min(account.peak for account in accounts(chain, early_stop))
    assert interpret(least_memory(chain, early_stop=early_stop), chain, early_stop=early_stop).peak == least
    if least:
        with pytest.raises(Infeasible, match=rf"budget is {least - 1}; .* needs is {least}$"):
            optimal(chain, least - 1, early_stop=early_stop)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 10**12), min_size=2, max_size=12), st.integers(0, 100), st.sampled_from([1, 3, 20, 100]))
def test_rounding_never_exceeds_the_budget(sizes: list[int], percent: int, slots: int) -> None:
    chain = tuple(Stage(output=size, saved=2 * size, gradient=size, backward=1) for size in sizes)
    least, most = interpret(least_memory(chain), chain).peak, interpret(kept(0, len(chain)), chain).peak
    budget = least + (most - least) * percent // 100
    plan = optimal(chain, budget, slots=slots)
    require_order(plan, len(chain))
    assert interpret(plan, chain).peak <= budget


def test_more_slots_do_not_give_a_slower_plan() -> None:
    chain = tuple(
        Stage(forward=1 + i % 3, output=900 + 37 * i % 211, saved=2500 + 91 * i % 777, gradient=900) for i in range(24)
    )
    budget = interpret(kept(0, 24), chain).peak // 3
    times = [interpret(optimal(chain, budget, slots=slots), chain).time for slots in (10, 50, 500)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


@pytest.mark.parametrize("part", [2, 4])
def test_what_rounding_takes_is_given_back(part: int) -> None:
    draw = random.Random(0)
    outputs = [draw.randint(10**5, 10**6) for _ in range(24)]
    chain = tuple(
        Stage(forward=1 + draw.random(), output=output, saved=output + draw.randint(0, 3 * 10**6), gradient=output)
        for output in outputs
    )
    budget = interpret(kept(0, 24), chain).peak // part
    coarse, fine = (interpret(optimal(chain, budget, slots=slots), chain) for slots in (200, 2000))
    assert coarse.time == pytest.approx(fine.time)
    assert max(coarse.peak, fine.peak) <= budget


PLANNERS: dict[str, Callable[[int], Plan]] = {
    "uniform": lambda n: uniform(n, max(1, n // 3)),
    "sqrt": sqrt_segments,
    "greedy": lambda n: greedy(unit_chain(n), 3),
    "searched": lambda n: searched(unit_chain(n)),
    "recursive": recursive,
    "recursive by 4": lambda n: recursive(n, 4),
    "binary": binary,
    "revolve": lambda n: revolve(n, 3),
    "revolve 1": lambda n: revolve(n, 1),
    "least": lambda n: least_memory(unit_chain(n)),
    "optimal": lambda n: optimal(unit_chain(n), n // 2 + 3),
}


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_plan_is_legal_and_none_is_below_the_optimum(planner: str) -> None:
    for count in range(1, 40):
        plan = PLANNERS[planner](count)
        require_order(plan, count)
        chain = unit_chain(count)
        account = interpret(plan, chain)
        if count % 6 == 0:
            assert interpret(optimal(chain, account.peak), chain).time <= account.time, text(plan)


@functools.cache
def least_advances(count: int, snapshots: int) -> float:
    """By the recursion alone, without a closed form."""
    if count == 1:
        return 0
    if snapshots == 0:
        return math.inf
    return min(i + least_advances(i, snapshots) + least_advances(count - i, snapshots - 1) for i in range(1, count))


@pytest.mark.parametrize("snapshots", range(1, 8))
def test_revolve_takes_the_least_number_of_runs_and_no_more_snapshots(snapshots: int) -> None:
    for count in range(1, 50):
        account = interpret(revolve(count, snapshots), unit_chain(count), early_stop=False)
        assert account.calls == count + advances(count, snapshots) == count + least_advances(count, snapshots)
        assert account.inputs <= snapshots


def test_the_root_choice_keeps_the_fewest_units_of_all_uniform_cuts() -> None:
    for count in range(1, 40):
        alive = [interpret(uniform(count, k), unit_chain(count)).alive for k in range(1, count + 1)]
        assert interpret(sqrt_segments(count), unit_chain(count)).alive == min(alive)
    assert sqrt_segments(64) == uniform(64, 8)


def test_greedy_segments_end_where_the_next_stage_would_be_too_much() -> None:
    chain = tuple(Stage(output=1, saved=saved) for saved in (3, 2, 9, 1, 1, 1))
    assert text(greedy(chain, 5)) == "[0 1] [2] 3 4 5"
    assert text(greedy(chain, 100)) == "0 1 2 3 4 5"
    assert greedy((), 5) == ()


def test_the_search_within_a_budget_takes_the_fastest_cut_that_fits() -> None:
    chain = unit_chain(64)
    least = interpret(searched(chain), chain).peak
    assert interpret(searched(chain, 30), chain).time < interpret(searched(chain), chain).time
    assert interpret(searched(chain, 30), chain).peak <= 30
    with pytest.raises(Infeasible, match=rf"budget is {least - 1}; .* is {least}$"):
        searched(chain, least - 1)


def test_recursion_needs_inputs_in_the_logarithm_of_the_length() -> None:
    for level in range(1, 8):
        assert interpret(recursive(2**level), unit_chain(2**level)).inputs == level
        assert interpret(recursive(3**level, 3), unit_chain(3**level)).inputs <= 2 * level


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: uniform(4, 5), ValueError, "segments is 5; it must be at least 1 and at most 4"),
        (lambda: uniform(0, 1), ValueError, "count is 0"),
        (lambda: uniform(4, 2.0), TypeError, "segments is 2.0"),  # type: ignore[arg-type]
        (lambda: recursive(4, 1), ValueError, "parts is 1"),
        (lambda: binary(0), ValueError, "count is 0"),
        (lambda: revolve(4, 0), ValueError, "snapshots is 0"),
        (lambda: revolve(True, 1), TypeError, "count is True"),
        (lambda: optimal(unit_chain(2), 1.5), TypeError, "budget is 1.5"),  # type: ignore[arg-type]
        (lambda: optimal(unit_chain(2), 9, slots=0), ValueError, "slots is 0"),
        (lambda: searched(unit_chain(2), tries=1), ValueError, "tries is 1"),
        (lambda: searched(unit_chain(2), 2.5), TypeError, "budget is 2.5"),  # type: ignore[arg-type]
        (lambda: greedy(unit_chain(2), math.nan), ValueError, "segment_size is nan"),
        (lambda: greedy(unit_chain(2), "2"), TypeError, "segment_size is '2'"),  # type: ignore[arg-type]
        (lambda: optimal(None, 2), TypeError, "chain is of type NoneType"),  # type: ignore[arg-type]
        (lambda: least_memory([1]), TypeError, r"chain\[0\] is 1; it must be a Stage"),  # type: ignore[list-item]
        (lambda: optimal((Stage(output=2**62, saved=2**62),) * 2, 2**63), ValueError, r"less than 2\*\*62"),
    ],
)
def test_arguments_of_no_plan_are_refused(call: Callable[[], Plan], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as refused:
        call()
    assert not isinstance(refused.value, Infeasible)


def test_a_chain_without_stages_has_the_empty_plan() -> None:
    assert optimal((), 0) == searched(()) == least_memory(()) == ()
