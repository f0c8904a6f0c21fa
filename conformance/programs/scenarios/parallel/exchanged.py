"""Programs with collectives of their own inside of regions: sums over ranks, exchanges, and the modules built on them."""

from __future__ import annotations

from typing import Any

import torch


def inside(
    checkpoint: Any, note: Any, device: str, *, kinds: tuple[str, ...], regions: int, nested: bool, last: bool, steps: int
) -> None:
    """Collectives that have a derivative, between operators of a region, or ``last`` in it."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives
    from torch.distributed.nn.functional import all_gather, all_reduce

    weight = torch.nn.Parameter(torch.randn(4, 4))
    world, rank = dist.get_world_size(), dist.get_rank()

    def exchanged(kind, h):
        if kind == "sum":
            return all_reduce(h)
        if kind == "gather":
            return torch.stack(all_gather(h)).sum(0)
        return collectives.all_to_all_single_autograd(h, None, None, dist.group.WORLD)

    def inner(h):
        for kind in kinds:
            h = exchanged(kind, torch.sin(h @ weight))
        return h if last else torch.tanh(h)

    def outer(h):
        return checkpoint(inner, torch.cos(h)) if nested else inner(torch.cos(h))

    torch.manual_seed(1 + rank)
    for step in range(steps):
        x = torch.randn(world * 2, 4, requires_grad=True)
        h = x
        for _ in range(regions):
            h = checkpoint(outer, h)
        h.square().mean().backward()
        note(f"forward {step}", h)
        note(f"gradients {step}", [x.grad, weight.grad])
        weight.grad = None


def two_regions(checkpoint: Any, note: Any, device: str, *, swapped: bool, differentiable: bool) -> None:
    """Two regions with a sum over ranks each, which ranks differentiate in one order, or some in the opposite one."""
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_reduce

    def summed(h):
        if differentiable:
            return all_reduce(h)
        total = h.detach().clone()
        dist.all_reduce(total)
        return total + 0  # a tensor of the program's own: the group may hold the other one for a moment

    def first(h):
        return torch.sin(h * summed(torch.sin(h)))

    def second(h):
        return torch.cos(h * summed(torch.cos(h)) * 2)

    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, requires_grad=True)
    y = torch.randn(3, requires_grad=True)
    one, other = checkpoint(first, x), checkpoint(second, y)
    note("forward", [one, other])
    if swapped and dist.get_rank() % 2:
        one, other = other, one
    one.sum().backward()
    other.sum().backward()
    note("gradients", [x.grad, y.grad])


def statistics(checkpoint: Any, note: Any, device: str, *, steps: int) -> None:
    """Running statistics that a region averages over ranks."""
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_reduce

    mean = torch.zeros(4)
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def normalized(h):
        h = torch.sin(h @ weight)
        shared = all_reduce(h.mean(0)) / dist.get_world_size()
        mean.lerp_(shared.detach(), 0.5)
        return torch.tanh(h - shared)

    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        y = checkpoint(normalized, x)
        y.square().mean().backward()
        note(f"forward {step}", y)
        note(f"gradients {step}", [x.grad, weight.grad])
        note(f"statistics {step}", mean)
        weight.grad = None
