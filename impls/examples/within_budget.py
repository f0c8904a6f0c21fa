"""A network trained in less memory than it takes plain: ``python -m impls.examples.within_budget [MiB]``."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from impls.schedules import checkpoint_sequential, interpret, kept, least_memory, measure, plan_for, text
from impls.schedules.live_bytes import LiveStorages

BUDGET = 15 * 2**19  # bytes
ROOM = 2**18  # of them for what plan_for does not count: the loss, and 5 kB of random generators' state a region
WIDTHS, POINTS, BATCH, CLASSES = (16, 64, 160, 320), 1024, 16, 10


def network() -> nn.Sequential:
    """A classifier of sequences: its first layers take most of the memory, its last ones do most of the work."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, width in zip((3, *(4 * width for width in WIDTHS)), WIDTHS, strict=False):
        merge = (nn.Unflatten(1, (-1, 4)), nn.Flatten(2)) if layers else ()  # four neighbours become one
        layers += [nn.Sequential(*merge, nn.Linear(before, width)), nn.LayerNorm(width), nn.GELU()]
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.1), nn.Linear(POINTS // 64 * WIDTHS[-1], CLASSES))


def batch() -> tuple[Tensor, Tensor]:
    """Random sequences of points in space, and labels to learn by heart."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, POINTS, 3, generator=draw), torch.randint(CLASSES, (BATCH,), generator=draw)


def train(model: nn.Module, forward: Callable[[Tensor], Tensor], steps: int) -> Iterator[tuple[float, list[Tensor], int]]:
    """Train through ``forward``: the loss of each step, its gradients, and the peak bytes of what else it made."""
    optimizer, (points, labels) = torch.optim.SGD(model.parameters(), lr=0.01), batch()
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # backward adds to it
        torch.manual_seed(step)  # for dropout: both trainings below draw from the same stream
        with LiveStorages() as live:
            loss = nn.functional.cross_entropy(forward(points), labels)
            loss.backward()
        optimizer.step()
        yield loss.item(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None], live.peak


def budget_from(arguments: Sequence[str], model: nn.Sequential) -> int:
    """The bytes of a budget given in MiB, ``BUDGET`` without any.

    Raises ValueError for one that no plan for ``model`` meets, and for one that ``model`` does not exceed plain.
    """
    if not arguments:
        return BUDGET
    chain = measure(model, batch()[0])
    least, plain = (interpret(plan, chain).peak for plan in (least_memory(chain), kept(0, len(chain))))
    least += ROOM
    try:
        budget = float(*arguments) * 2**20
    except (TypeError, ValueError):
        budget = math.nan
    if not (least <= budget < plain):
        low, high = math.ceil(least / 2**20 * 100) / 100, math.floor(plain / 2**20 * 100) / 100
        raise ValueError(
            f"MiB is {' '.join(arguments)!r}; it must be one number, at least {low:.2f}, which the least of all plans for this "
            f"network needs, and at most {high:.2f}, since plain takes more than that"
        )
    return int(budget)


if __name__ == "__main__":
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other spoil the times that a plan is made from
    plain, planned = network(), network()
    try:
        budget = budget_from(sys.argv[1:], planned)
    except ValueError as error:
        sys.exit(str(error))
    plan = plan_for(planned, batch()[0], budget - ROOM, repeats=3)
    print(f"plan for {budget:,} bytes: {text(plan)}")
    runs = train(plain, plain, 8), train(planned, lambda points: checkpoint_sequential(planned, plan, points), 8)
    for (loss, expected, without), (same, gradients, peak) in zip(*runs, strict=True):
        equal = same == loss and all(map(torch.equal, gradients, expected))
        print(f"loss {same:.6f}, equal to plain's with all gradients: {equal}; peak {peak:,} bytes, plain {without:,}")
        if not equal or peak > budget:
            sys.exit("the plan does not keep what it promises")
