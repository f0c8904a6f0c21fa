"""A network trained within memory budgets, by plans and by segments: what each way costs, measured.

The network is that of ``impls.examples.within_budget``, too large for the budgets when it is trained plain.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benches.compare.meters import allocated
from benches.papers.meters.live import Live
from conformance.rows import results_file
from impls import schedules
from impls.examples.within_budget import BUDGET, ROOM, batch, network
from impls.schedules import Chain, Plan

BUDGETS = BUDGET, 5 * 2**20
ROUNDS = 21
FORWARD = "addmm", "native_layer_norm", "gelu", "bernoulli_"  # what the layers run forward, and nothing runs backward
Step = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """What one way of training costs.

    ``budget`` is what a plan was made for, None for segments and plain; ``plan`` its text. ``tensors`` is the peak, in
    bytes, of the storages that operators made, ``allocated`` that of torch's allocator. ``kernels`` counts the forward
    kernels that ran again, ``flops`` those of matrix products beyond plain's. ``times`` are quartiles of the CPU time of a
    step, as ratios to plain's of the same round.
    """

    name: str
    budget: int | None
    plan: str
    tensors: int
    allocated: int
    kernels: int
    flops: int
    times: Sequence[float]

    @property
    def peak(self) -> int:
        """The larger of both peaks: a tensor may live outside of the allocator, a workspace is no tensor."""
        return max(self.tensors, self.allocated)


def mebi(size: int) -> str:
    """A size in bytes as MiB, with up to two digits after the point."""
    return f"{size / 2**20:.2f}".rstrip("0").rstrip(".")


def candidates(model: nn.Sequential, points: torch.Tensor) -> dict[str, tuple[int | None, Plan]]:
    """Ways to train the network by name, plain first, each plan once: a budget where it was made for one, and the plan."""
    chain = schedules.measure(model, points, repeats=3)
    count = len(chain)
    found: dict[Plan, list[str]] = {schedules.kept(0, count): ["plain"], schedules.sqrt_segments(count): ["Chen's √n segments"]}
    made: dict[Plan, int] = {}
    for budget in BUDGETS:
        for name, plan in (_equal(chain, budget), _greedy(chain, budget)):
            if name not in found.setdefault(plan, []):
                found[plan].append(name)
    for budget in BUDGETS:
        plan = schedules.plan_for(model, points, budget - ROOM, repeats=3)
        found.setdefault(plan, []).append(f"planned for {mebi(budget)} MiB")
        made.setdefault(plan, budget)
    return {", ".join(names): (made.get(plan), plan) for plan, names in found.items()}


def _equal(chain: Chain, budget: int) -> tuple[str, Plan]:
    """The fastest of equal segments that should fit, or those of least memory."""
    plans = [schedules.uniform(len(chain), segments) for segments in range(1, len(chain) + 1)]
    accounts = {plan: schedules.interpret(plan, chain) for plan in plans}
    fitting = [plan for plan in plans if accounts[plan].peak <= budget - ROOM]
    if fitting:
        return f"fastest equal segments in {mebi(budget)} MiB", min(fitting, key=lambda plan: accounts[plan].time)
    return "equal segments of least memory", min(plans, key=lambda plan: accounts[plan].peak)


def _greedy(chain: Chain, budget: int) -> tuple[str, Plan]:
    """Chen's greedy cut: the fastest that should fit, or that of least memory."""
    least = schedules.searched(chain)
    if schedules.interpret(least, chain).peak > budget - ROOM:
        return "greedy segments of least memory", least
    return f"fastest greedy segments in {mebi(budget)} MiB", schedules.searched(chain, budget - ROOM)


def training(model: nn.Sequential, plan: Plan) -> Step:
    """A step of training, always the same one, without the optimizer. Gradients are added to those that are there."""
    points, labels = batch()
    planned = functools.partial(schedules.checkpoint_sequential, model, plan)
    forward = model if plan == schedules.kept(0, len(model)) else planned

    def step() -> None:
        torch.manual_seed(2)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        nn.functional.cross_entropy(forward(points), labels).backward()

    return step


def measured(*, rounds: int = ROUNDS) -> dict[str, Any]:
    """All that is measured, as it is stored; times are quartiles over ``rounds`` rounds, each of which times all ways.

    Raises RuntimeError when a gradient is not plain autograd's to the last bit.
    """
    model, (points, _) = network(), batch()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    begun = time.perf_counter()
    ways = candidates(model, points)
    seconds = time.perf_counter() - begun
    with Live() as live:
        schedules.measure(model, points)
    steps = {name: training(model, plan) for name, (_, plan) in ways.items()}
    require_equal(model, steps)
    peaks = {name: _allocated(step) for name, step in steps.items()}
    costs = {name: _cost(step) for name, step in steps.items()}
    times = _times(steps, rounds)
    _, kernels, flops = costs["plain"]
    rows = [
        Row(
            name,
            budget,
            schedules.text(plan),
            costs[name][0],
            peaks[name],
            costs[name][1] - kernels,
            costs[name][2] - flops,
            times[name],
        )
        for name, (budget, plan) in ways.items()
    ]
    head = results_file.header(seed=0, profile="budget", device="cpu")
    return {
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        "versions": {**head["versions"], "numpy": metadata.version("numpy")},
        "layers": len(model),
        "budgets": BUDGETS,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "kernels": kernels,
        "flops": flops,
        "planning": {"seconds": seconds, "peak": live.peak},
        "rows": [asdict(row) for row in rows],
    }


def require_equal(model: nn.Sequential, steps: Mapping[str, Step]) -> None:
    """Raise RuntimeError unless each way gives the first one's gradients to the last bit, and none of those is all zeros."""
    expected: list[torch.Tensor] = []
    for name, step in steps.items():
        step()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        expected = expected or gradients
        if not all(map(torch.equal, gradients, expected)) or not all(gradient.any() for gradient in gradients):
            raise RuntimeError(f"{name}: gradients are not those of plain autograd to the last bit, or nothing but zeros")


def _cost(step: Step) -> tuple[int, int, int]:
    """Peak bytes of what operators make, how many forward kernels ran, FLOPs."""
    with Live() as live:
        step()
    with FlopCounterMode(display=False) as counter:  # not in the same run: it keeps tensors alive
        step()
    forward = sum(live.kernels[name] for name in FORWARD)
    return live.peak, forward, counter.get_total_flops()


def _allocated(step: Step) -> int:
    """Peak bytes that torch's allocator hands out in a step, workspaces of kernels too."""

    def whole(over: Callable[[], object]) -> None:
        step()
        over()

    return allocated(whole, "cpu").peak


def _times(steps: Mapping[str, Step], rounds: int) -> dict[str, Sequence[float]]:
    """Quartiles of the time of each step as ratio to the first one's. Each round begins with another step.

    Time is the process's CPU time, which other load disturbs less; on one thread it is the whole time of a step.
    """
    names = list(steps)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        took = {}
        for index in range(len(names)):
            name = names[(number + index) % len(names)]
            begun = time.process_time()
            steps[name]()
            took[name] = time.process_time() - begun
        for name in names:
            ratios[name].append(took[name] / took[names[0]])
    return {name: tuple(statistics.quantiles(found, n=4, method="inclusive")) for name, found in ratios.items()}
