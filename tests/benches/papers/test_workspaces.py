"""What the allocator shows of stages adds up to what it shows of plans, with the workspaces of kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benches.compare.meters import most, recorded, within
from benches.papers.meters import workspaces
from impls.schedules import Plan, interpret, kept, measure, optimal, uniform


def network() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Conv2d(8, 8, 3, 1, 1), nn.Tanh(), nn.GroupNorm(4, 8)]
    return nn.Sequential(*layers), torch.randn(4, 3, 32, 32, requires_grad=True)


@pytest.mark.parametrize("plan", [kept(0, 17), uniform(17, 2), uniform(17, 5)])
def test_a_plan_takes_of_the_allocator_what_is_foreseen(plan: Plan) -> None:
    model, images = network()
    chain = workspaces.with_workspaces(measure(model, images), model, images)
    assert workspaces.executed(model, plan, images) == interpret(plan, chain).peak


def test_a_plan_keeps_a_budget_that_workspaces_count_in() -> None:
    model, images = network()
    chain = workspaces.with_workspaces(measure(model, images), model, images)
    budget = interpret(kept(0, 17), chain).peak * 3 // 4
    assert workspaces.executed(model, optimal(chain, budget), images) <= budget


def test_changes_within_a_span_are_those_of_its_time() -> None:
    def run() -> None:
        with torch.profiler.record_function("two"):
            tensor = torch.empty(100)
            del tensor
            torch.empty(50)
        torch.empty(1000)

    spans, memory = recorded(run)
    assert most(within(memory, spans["two"])) == 400
    assert most(within(memory, spans["step"])) == 4000
    assert most([]) == most([(0.0, -1)]) == 0
