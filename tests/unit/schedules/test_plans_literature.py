"""The exact numbers that the literature gives for schedules, on executed autograd where a count can be executed.

Chains are of layers that save exactly their input. An Account counts neither the chain's input nor, once its stage's
backward is done, its output. The peaks published for segments are those of a caller that holds the output and its gradient
to the end; those for nesting count the input as well.
"""

from __future__ import annotations

import math

import pytest
import torch

from impls import reentrant
from impls.schedules import (
    Keep,
    Plan,
    Region,
    Stage,
    advances,
    binary,
    checkpoint_sequential,
    execute,
    interpret,
    interpret_steps,
    kept,
    optimal,
    recursive,
    revolve,
    steps,
    uniform,
    unit_chain,
)
from tests.support.plan_chains import Layer, Run, run


def nested(plan: Plan, count: int, early_stop: bool = True) -> Run:
    """Executed, and checked against the interpreter and plain autograd."""
    chain = unit_chain(count)
    real = run(chain, lambda layers, x: checkpoint_sequential(layers, plan, x, early_stop=early_stop))
    account = interpret(plan, chain, early_stop=early_stop)
    assert (real.time, real.peak, real.alive, real.calls, real.kernels) == (
        account.time, account.peak, account.alive, account.calls, account.kernels)  # fmt: skip
    plain = run(chain, lambda layers, x: checkpoint_sequential(layers, kept(0, count), x))
    assert torch.equal(real.gradient, plain.gradient)
    assert plain.gradient.count_nonzero()
    return real


def held(plan: Plan, count: int) -> Run:
    """Executed by a caller that holds the output and its gradient."""
    return run(unit_chain(count), lambda layers, x: checkpoint_sequential(layers, plan, x), held=True)


def reentrant_held(plan: Plan, count: int) -> Run:
    """The same by reentrant checkpoints."""

    def execution(layers: list[Layer], x: torch.Tensor) -> torch.Tensor:
        return execute(layers, plan, x, lambda body, box: reentrant.checkpoint(lambda value: body([value]), box.pop()))

    return run(unit_chain(count), execution, held=True)


@pytest.mark.parametrize(("count", "segments"), [(64, 2), (64, 4), (64, 8), (64, 32), (36, 6), (60, 5)])
def test_chen_segments_cost_what_the_formulas_say(count: int, segments: int) -> None:
    real, size = nested(uniform(count, segments), count), count // segments
    assert real.calls == count + size * (segments - 1)
    assert real.kernels == count + (segments - 1) * (size - 1)
    assert real.alive == (segments - 1) + size


def test_chen_64_layers() -> None:
    two, eight = nested(uniform(64, 2), 64), nested(uniform(64, 8), 64)
    assert (two.calls, two.alive) == (96, 33)
    assert (eight.calls, eight.kernels, eight.alive) == (120, 113, 15)
    assert (eight.peak + 1, held(uniform(64, 8), 64).peak, reentrant_held(uniform(64, 8), 64).peak) == (17, 17, 18)


@pytest.mark.parametrize(
    ("count", "snapshots", "runs"), [(10, 2, 30), (10, 3, 25), (20, 4, 59), (64, 6, 220), (100, 9, 334), (1000, 8, 5285)]
)
def test_griewank_forward_steps(count: int, snapshots: int, runs: int) -> None:
    assert count + advances(count, snapshots) == runs
    account = interpret(revolve(count, snapshots), unit_chain(count))
    assert (account.calls, account.inputs) == (runs, snapshots)
    if count <= 100:
        assert nested(revolve(count, snapshots), count).calls == runs


def test_griewank_one_snapshot_is_quadratic() -> None:
    for count in (1, 2, 7, 20):
        assert nested(revolve(count, 1), count).calls == count + count * (count - 1) // 2


HOMOGENEOUS = (Stage(forward=1, backward=2, output=1, saved=3, gradient=1),) * 20


@pytest.mark.parametrize(("budget", "time"), [(5, 250), (6, 125), (7, 105), (8, 96), (61, 60)])
def test_beaumont_homogeneous_chain(budget: int, time: int) -> None:
    plan = optimal(HOMOGENEOUS, budget)
    account = interpret_steps(steps(plan), HOMOGENEOUS)
    assert account.time == time
    assert account.peak <= budget
    binomial = 60 + advances(20, budget - 4)
    assert time == binomial if budget in (5, 6, 7) else time < binomial or budget == 61


def test_beaumont_below_the_least_budget() -> None:
    with pytest.raises(ValueError, match=r"budget is 4; .* needs is 5"):
        optimal(HOMOGENEOUS, 4)


def test_beaumont_plans_execute_at_their_cost() -> None:
    chain = tuple(
        Stage(forward=1, backward=2, output=1, saved=3, gradient=1, passing_extra=2, backward_extra=1) for _ in range(20)
    )
    for budget in (6, 7, 8, 9, 30):
        plan = optimal(chain, budget)
        real = run(chain, lambda layers, x, plan=plan: checkpoint_sequential(layers, plan, x))  # type: ignore[misc]
        assert real.time == interpret(plan, chain).time
        assert real.peak == interpret(plan, chain).peak <= budget


@pytest.mark.parametrize("level", range(1, 7))
def test_nesting_both_halves(level: int) -> None:
    count = 2**level
    real, full = nested(binary(count), count), nested(binary(count), count, early_stop=False)
    assert full.calls == count * (level + 1)
    assert real.calls == count * (level / 2 + 3 / 2)
    assert real.kernels == count * (level / 2 + 1 / 2)
    assert real.peak + 2 == held(binary(count), count).peak + 1 == level + 4
    assert reentrant_held(binary(count), count).peak + 1 == 2 * level + 4


def test_nesting_64_layers() -> None:
    assert nested(binary(64), 64, early_stop=False).calls == 448
    real = nested(binary(64), 64)
    assert (real.calls, real.kernels, held(binary(64), 64).peak + 1) == (288, 224, 10)
    assert reentrant_held(binary(64), 64).peak + 1 == 16


@pytest.mark.parametrize("level", range(1, 7))
def test_nesting_left_halves_alone(level: int) -> None:
    count = 2**level
    real = nested(recursive(count), count)
    assert real.calls == count * (level / 2 + 1)
    assert real.kernels == count / 2 * level + 1
    assert math.log2(count) == level == interpret(recursive(count), unit_chain(count)).inputs


def test_a_region_tree_is_revolves_schedule() -> None:
    assert revolve(4, 2) == (Region((Keep(0),)), Region((Region((Keep(1),)), Keep(2))), Keep(3))
