"""Regions with collectives of different kinds, whose backward ranks call in different orders."""

from __future__ import annotations

from typing import Any

import torch


def of_two_kinds(checkpoint: Any, note: Any, device: str, *, kinds: tuple[str, str]) -> None:
    """Two regions with a collective each that only forward has; their group waits for two seconds, and then raises an error."""
    import time
    from datetime import timedelta

    import torch.distributed as dist

    limit = 2
    group = dist.new_group(timeout=timedelta(seconds=limit))

    def exchanged(kind, h):
        made = [h.detach().clone() for _ in range(dist.get_world_size())]
        begun = time.monotonic()
        try:
            if kind == "sum":
                dist.all_reduce(made[0], group=group)
            elif kind == "gather":
                dist.all_gather(made, made[0].clone(), group=group)
            else:
                dist.all_to_all_single(made[0], made[1], group=group)
        except RuntimeError:
            if time.monotonic() - begun >= limit:
                note("waited up to the limit", True)
            raise
        return made[0] + 0

    def first(h):
        return torch.sin(h * exchanged(kinds[0], torch.sin(h)))

    def second(h):
        return torch.cos(h * exchanged(kinds[1], torch.cos(h)) * 2)

    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(4 * dist.get_world_size(), requires_grad=True)
    y = torch.randn(4 * dist.get_world_size(), requires_grad=True)
    one, other = checkpoint(first, x), checkpoint(second, y)
    note("forward", [one, other])
    if dist.get_rank() % 2:
        one, other = other, one
    one.sum().backward()
    other.sum().backward()
    note("gradients", [x.grad, y.grad])
