"""The runtime simulator keeps to its budget and to what is there; its schedules and Checkmate's are legal, and run."""

from __future__ import annotations

import heapq
import itertools
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benches.papers import dtr2021
from benches.papers.models.traced_models import MODELS, softplus_chain
from benches.papers.traces import checkmate, dtr, execution
from benches.papers.traces.trace import Event, Op, Trace, linear_chain, record


@st.composite
def traces(draw: Any, most: int = 12, outputs: int = 2) -> Trace:
    """Operators that read any earlier values that are alive; a value dies after its last reader, some stay to the end."""
    ops: list[Op] = []
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, most))):
        reads = draw(st.sets(st.integers(0, len(sizes) - 1), max_size=3)) if sizes else set()
        makes = tuple(range(len(sizes), len(sizes) + draw(st.integers(1, outputs))))
        sizes += [draw(st.integers(1, 3)) for _ in makes]
        ops.append(Op("op", tuple(sorted(reads)), makes, draw(st.integers(1, 4))))
    final = set(ops[-1].makes) | draw(st.sets(st.integers(0, len(sizes) - 1), max_size=2))
    last = {value: index for index, op in enumerate(ops) for value in (*op.reads, *op.makes)}
    events: list[Event] = []
    for index in range(len(ops)):
        events.append(Event("compute", index))
        events += [Event("release", value) for value, at in last.items() if at == index and value not in final]
    return Trace(tuple(ops), tuple(sizes), tuple(events))


def simulated(trace: Trace, budget: int, heuristic: str) -> dtr.Run:
    try:
        return dtr.simulate(trace, budget, heuristic, most=1000)
    except dtr.DoesNotFit:
        assume(False)
        raise


@settings(max_examples=150, deadline=None)
@given(traces(), st.integers(0, 10), st.sampled_from(tuple(dtr.HEURISTICS)))
def test_schedules_are_legal_and_cost_what_is_said(trace: Trace, room: int, heuristic: str) -> None:
    budget = trace.floor + room
    run = simulated(trace, budget, heuristic)
    checked = execution.check(trace, run.events, budget)
    assert (checked.cost, checked.peak) == (run.cost, run.peak)
    assert trace.cost <= run.cost
    assert run.peak <= budget


@settings(max_examples=60, deadline=None)
@given(traces(), st.sampled_from(tuple(dtr.HEURISTICS)))
def test_with_memory_for_everything_nothing_is_computed_twice(trace: Trace, heuristic: str) -> None:
    run = simulated(trace, trace.peak, heuristic)
    assert (run.cost, run.peak) == (trace.cost, trace.peak)


def test_a_budget_below_an_operators_needs_does_not_fit() -> None:
    with pytest.raises(dtr.DoesNotFit, match="forward needs 3, the budget is 2"):
        dtr.simulate(linear_chain(8), 2, "h_DTR")
    with pytest.raises(dtr.DoesNotFit, match="costs more than 32"):
        dtr.simulate(linear_chain(8), 3, "h_e*", most=2)
    with pytest.raises(ValueError, match="heuristic is 'best'; it must be one of h_DTR"):
        dtr.simulate(linear_chain(8), 9, "best")


@pytest.mark.parametrize(("n", "count"), [(16, 39), (64, 175), (256, 738)])
def test_h_dtr_on_chains_up_to_256_is_within_three_passes(n: int, count: int) -> None:
    assert dtr2021.operations(n, dtr2021.budget_of(n)) == count <= 3 * n
    assert 2 * dtr2021.simulated(n, "h_e*") <= 7 * n


def test_h_local_on_a_chain_takes_more_and_more_per_layer() -> None:
    ratios = [dtr2021.simulated(n, "h_local") / n for n in (16, 64, 256)]
    assert ratios == sorted(set(ratios))


def test_the_chain_is_what_autograd_does() -> None:
    recorded, _ = record(softplus_chain(6), cost=lambda *_: 1)
    wanted = linear_chain(6)
    assert [(set(op.reads), op.makes, op.cost) for op in recorded.ops] == [
        (set(op.reads), op.makes, op.cost) for op in wanted.ops
    ]
    assert [event for event in recorded.events if event.kind == "compute"] == [e for e in wanted.events if e.kind == "compute"]
    assert set(recorded.events[:-1]) == set(wanted.events[:-1])
    assert recorded.results == wanted.results == {11}


@pytest.mark.parametrize("name", MODELS)
def test_recorded_models_run_at_half_of_their_peak(name: str) -> None:
    trace, gradients = record(MODELS[name]())
    run = dtr.simulate(trace, trace.peak // 2, "h_DTR")
    assert run.cost > trace.cost
    done = dtr2021.run(trace, run.events, trace.peak // 2, tuple(gradients))
    assert done.live.peak == run.peak <= trace.peak // 2


def test_operators_in_place_and_views_are_recorded_and_run_again() -> None:
    start = torch.arange(6.0)

    def function() -> list[torch.Tensor]:
        value = start + 1
        half = value.view(2, 3)[1]
        half.mul_(3)
        square = value * value
        value.add_(square)
        return [value, square.view(3, 2).t()]

    trace, expected = record(function)
    assert [op.name for op in trace.ops] == ["add", "mul_", "mul", "add_"]
    events = [Event("compute", 0), Event("compute", 1), Event("drop", 1), Event("compute", 1), Event("compute", 2)]
    events += [Event("drop", 1), Event("drop", 0), Event("compute", 0), Event("compute", 1), Event("compute", 3)]
    done = execution.execute(trace, events)
    assert all(torch.equal(one, other) for one, other in zip(done.outputs, expected, strict=True))
    assert execution.check(trace, events, 100).cost == sum(trace.ops[e.number].cost for e in events if e.kind == "compute")


def test_what_cannot_be_run_again_is_refused() -> None:
    weight = torch.ones(2)
    with pytest.raises(ValueError, match=r"draws random numbers"):
        record(lambda: [torch.rand(2) + weight])
    with pytest.raises(ValueError, match=r"writes to a tensor that was there before"):
        record(lambda: [weight.add_(1)])
    with pytest.raises(ValueError, match=r"operator 0 \(forward\) was not recorded"):
        execution.execute(linear_chain(2), [Event("compute", 0)])


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([("compute", 1)], r"step 0 runs operator 1 \(forward\) without value 0"),
        ([("compute", 0), ("drop", 0), ("compute", 1)], "step 2 runs operator 1"),
        ([("drop", 0)], "step 0 drops value 0, which is not in memory"),
        ([("compute", 0), ("compute", 2)], "step 1 runs operator 2 .* without value 1|before operator 1"),
        ([("compute", 0), ("compute", 1), ("compute", 2)], "step 2, operator 2 .* takes 3 of 2"),
        ([("compute", 0)], "1 of 4 operators were run, results .3. are missing"),
    ],
)
def test_an_illegal_schedule_is_refused_with_its_step(events: list[tuple[str, int]], said: str) -> None:
    with pytest.raises(execution.IllegalSchedule, match=said):
        execution.check(linear_chain(2), [Event(*event) for event in events], 2)


def cheapest(trace: Trace, budget: int) -> int | None:
    """The least cost of any schedule, by trying all of them: Dijkstra over what is in memory and what has run."""
    number = itertools.count()
    queue: list[tuple[int, int, int, frozenset[int]]] = [(0, next(number), 0, frozenset())]
    seen: set[tuple[int, frozenset[int]]] = set()
    while queue:
        cost, _, first, memory = heapq.heappop(queue)
        if first == len(trace.ops) and trace.results <= memory:
            return cost
        if (first, memory) in seen:
            continue
        seen.add((first, memory))
        for value in memory:
            heapq.heappush(queue, (cost, next(number), first, memory - {value}))
        for index, op in enumerate(trace.ops[: first + 1]):
            more = memory | set(op.makes)
            if set(op.reads) <= memory and more != memory and sum(trace.sizes[value] for value in more) <= budget:
                heapq.heappush(queue, (cost + op.cost, next(number), max(first, index + 1), more))
    return None


@pytest.mark.parametrize(("n", "budget"), [(3, 2), (3, 3), (4, 3), (5, 3), (5, 4), (6, 3)])
def test_the_integer_program_finds_the_cheapest_schedule_of_a_chain(n: int, budget: int) -> None:
    best = checkmate.optimum(linear_chain(n), budget)
    assert (best and best.cost) == cheapest(linear_chain(n), budget)
    if best is not None:
        assert execution.check(linear_chain(n), best.events, budget).cost == best.cost


@settings(max_examples=15, deadline=None)
@given(traces(most=6, outputs=1), st.integers(0, 3))
def test_the_integer_program_finds_the_cheapest_schedule(trace: Trace, room: int) -> None:
    ends = [event for event in trace.events if event.kind == "compute"]
    trace = Trace(trace.ops, trace.sizes, (*ends, *(Event("release", value) for value in range(len(trace.ops) - 1))))
    budget = trace.floor + room
    best = checkmate.optimum(trace, budget)
    assert (best and best.cost) == cheapest(trace, budget)
    if best is not None:
        checked = execution.check(trace, best.events, budget)
        assert checked.cost == best.cost
        assert simulated(trace, budget, "h_DTR").cost >= best.cost


def test_a_trace_with_several_results_is_refused() -> None:
    chain = linear_chain(2)
    with pytest.raises(ValueError, match="must make one value, and the last one's must be the only result"):
        checkmate.optimum(Trace(chain.ops, chain.sizes, chain.events[:-1]), 4)
