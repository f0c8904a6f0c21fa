"""Programs in which one rank raises, and programs about what ranks draw and keep."""

from __future__ import annotations

from typing import Any

import torch


def raises(
    checkpoint: Any, note: Any, device: str, *, where: str, on: int, exchange: str, regions: int
) -> None:
    """The function of a region raises on one rank: in forward, or when it runs again."""
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_reduce

    rank, calls = dist.get_rank(), []
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def inner(h):
        calls.append(1)
        h = torch.sin(h @ weight)
        if exchange == "before":
            h = all_reduce(h)
        if rank == on and (len(calls) == 1 if where == "forward" else backward):
            raise ArithmeticError("of this rank alone")
        if exchange == "after":
            h = all_reduce(h)
        return torch.tanh(torch.cos(h))

    torch.manual_seed(1 + rank)
    x = torch.randn(3, 4, requires_grad=True)
    backward = False
    h = x
    for _ in range(regions):
        h = checkpoint(inner, h)
    loss = h.square().mean()
    note("forward", loss)
    backward = True
    loss.backward()
    note("gradients", [x.grad, weight.grad])


def sharded_after_an_error(checkpoint: Any, note: Any, device: str, *, regions: int, reshard: bool, outside: bool) -> None:
    """After a step, a backward ends in an error on all ranks."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clone()

        @staticmethod
        def backward(ctx, grad):
            if failing:
                raise ArithmeticError("in backward")
            return grad

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            return self.second(Fails.apply(torch.tanh(self.first(h))))

        def forward(self, h):
            return self.inner(h) if outside else checkpoint(self.inner, h)

    blocks = [fully_shard(Block(), reshard_after_forward=reshard) for _ in range(regions)]
    torch.manual_seed(1 + dist.get_rank())
    for step in range(2):
        failing = step == 1
        x = torch.randn(3, 4, requires_grad=True)
        h = x * 1
        for block in blocks:
            h = checkpoint(block, h) if outside else block(h)
        try:
            h.square().mean().backward()
        except ArithmeticError:
            note("what was raised", True)
        parameters = [one for block in blocks for one in block.parameters()]
        note(f"sharded {step}", [type(one).__name__ for one in parameters])
        note(f"gradients {step}", [x.grad, *(getattr(one.grad, "to_local", lambda one=one: one.grad)() for one in parameters)])
        for block in blocks:
            block.reshard()
            block.zero_grad()
        note(f"sharded by hand {step}", [type(one).__name__ for block in blocks for one in block.parameters()])


def masks(
    checkpoint: Any, note: Any, device: str, *, seeds: str, probability: float, regions: int, generator: bool, passes: int
) -> None:
    """Ranks draw masks in regions: each its own, all the same, or one of its own inside a stream that is shared."""
    import torch.distributed as dist

    rank = dist.get_rank()
    torch.manual_seed(3 if seeds == "shared" else 3 + rank)
    own = torch.Generator().manual_seed(5 + rank)
    weight = torch.nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))

    def inner(h, g=None):
        mask = torch.rand(3, 4, generator=g) if generator else torch.rand(3, 4)
        return torch.nn.functional.dropout(torch.sin(h @ weight), probability) * mask

    x = torch.ones(3, 4).cumsum(0).requires_grad_()
    h = x
    for _ in range(regions):
        h = checkpoint(inner, h, own) if generator else checkpoint(inner, h)
    note("forward", h)
    loss = h.square().mean()
    for turn in range(passes):
        loss.backward(retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [x.grad, weight.grad])
    note("what is drawn next", [torch.rand(2), torch.rand(2, generator=own)])


def sharded_masks(checkpoint: Any, note: Any, device: str, *, split: bool, probability: float, regions: int) -> None:
    """Regions draw masks of DTensors: one mask over all ranks where it is split, the same on each where it is not."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(7)
    x = distribute_tensor(torch.ones(4, 4).cumsum(0), mesh, [Shard(0) if split else Replicate()]).requires_grad_()
    h = x
    for _ in range(regions):
        h = checkpoint(lambda h: torch.nn.functional.dropout(torch.sin(h), probability), h)
    h.full_tensor().square().mean().backward()
    note("forward", h.full_tensor())
    note("gradients", [x.grad.full_tensor()])


def held(checkpoint: Any, note: Any, device: str, *, wrapper: str, regions: int, exchange: bool, steps: int) -> None:
    """Training steps that note all that they hold."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.nn.functional import all_reduce

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            h = torch.tanh(self.first(h))
            return torch.sin(self.second(all_reduce(h) if exchange else h))

        def forward(self, h):
            return checkpoint(self.inner, h)

    blocks = [Block() for _ in range(regions)]
    model = torch.nn.Sequential(*blocks)
    if wrapper == "sharded":
        for block in blocks:
            fully_shard(block)
        whole = fully_shard(model)
    else:
        whole = torch.nn.parallel.DistributedDataParallel(model) if wrapper == "replicated" else model
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        between = []
        keep = between.append
        handles = [block.register_forward_hook(lambda _, given, y, keep=keep: keep((given, y))) for block in blocks]
        loss = whole(x).square().mean()
        for handle in handles:
            handle.remove()
        note(f"held {step}", [x, loss, between])
        loss.backward()
        between.clear()
        note(f"gradients {step}", [x.grad])
        note(f"empty {step}", [x, loss])
        model.zero_grad()
