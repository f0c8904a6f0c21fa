"""Programs of several sharded units under one region, and of what exchanges leave alive."""

from __future__ import annotations

from typing import Any

import torch


def used_again(checkpoint: Any, note: Any, device: str, *, parent: bool, outside: bool, forwards: int, steps: int) -> None:
    """Two units that fully_shard shards inside of one region, with several forwards before a backward."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    class Parent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            return self.second(torch.tanh(self.first(h)))

        def forward(self, h):
            return self.inner(h) if outside else checkpoint(self.inner, h)

    model = Parent()
    fully_shard(model.first)
    fully_shard(model.second)
    if parent:
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(forwards)]
        product = torch.ones(3, 4)
        for x in inputs:
            product = product * (checkpoint(model, x * 1) if outside else model(x * 1))
        product.square().mean().backward()
        note(f"forward {step}", product)
        note(f"gradients {step}", [*(x.grad for x in inputs), *(one.grad.to_local() for one in model.parameters())])
        note(f"sharded {step}", [type(one).__name__ for one in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    note("whole parameters", [one.full_tensor() for one in model.parameters()])


def tied(checkpoint: Any, note: Any, device: str, *, way: str, outside: bool, reshard: bool, steps: int) -> None:
    """Units whose weights a forward uses twice: a unit is called again, or two of its layers have one weight."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    class Block(torch.nn.Sequential):
        def forward(self, h):
            inner = super().forward
            return h + (inner(h) if outside else checkpoint(inner, h))

    class Model(torch.nn.Sequential):
        def forward(self, h):
            for block in [*self, *([self[0]] if way == "calls" else [])]:
                h = checkpoint(block, h) if outside else block(h)
            return h

    model = Model(*(Block(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)) for _ in range(2)))
    for block in model:
        if way == "layers":
            block[2].weight = block[0].weight
        fully_shard(block, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        loss = model(x * 1).square().mean()
        loss.backward()
        note(f"forward {step}", loss)
        note(f"gradients {step}", [x.grad, *(None if one.grad is None else one.grad.to_local() for one in parameters)])
        note(f"sharded {step}", [type(one).__name__ for one in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    for one in (*model, model):
        one.reshard()
    note("whole parameters", [one.full_tensor() for one in parameters])


def cast(checkpoint: Any, note: Any, device: str, *, regions: int, steps: int) -> None:
    """Regions around units that each cast their input and their output: a recomputation is given what is not cast yet."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    made = [torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)) for _ in range(regions)]
    blocks = [fully_shard(one, mp_policy=policy) for one in made]
    parameters = [one for block in blocks for one in block.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        h = x * 1
        for block in blocks:
            h = checkpoint(block, h)
        h.square().mean().backward()
        note(f"forward {step}", h)
        note(f"gradients {step}", [x.grad, *(one.grad.to_local() for one in parameters)])
        optimizer.step()
        optimizer.zero_grad()
    note("whole parameters", [one.full_tensor() for block in blocks for one in block.parameters()])


def exchanged(checkpoint: Any, note: Any, device: str, *, way: str, regions: int, steps: int) -> None:
    """Regions that exchange rows between ranks, in a program that notes all that it holds."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives
    from torch.distributed.nn.functional import all_to_all_single

    weight = torch.nn.Parameter(torch.randn(4, 4))

    def inner(h):
        h = torch.sin(h @ weight)
        if way == "functional":
            h = collectives.all_to_all_single_autograd(h, None, None, dist.group.WORLD)
        else:
            h = all_to_all_single(torch.empty_like(h), h)
        return torch.tanh(h)

    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(dist.get_world_size() * 2, 4, requires_grad=True)
        between = [x]
        for _ in range(regions):
            between.append(checkpoint(inner, between[-1]))
        loss = between[-1].square().mean()
        note(f"held {step}", [between, loss])
        loss.backward()
        between.clear()
        note(f"gradients {step}", [x.grad, weight.grad])
        note(f"empty {step}", [x, loss, weight])
        weight.grad = None


def of_its_own(checkpoint: Any, note: Any, device: str, *, kinds: tuple[tuple[str, ...], ...], steps: int) -> None:
    """Regions that each have a function and collectives of their own."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives
    from torch.distributed.nn.functional import all_gather, all_reduce

    weight = torch.nn.Parameter(torch.randn(4, 4))

    def exchanged(kind, h):
        if kind == "sum":
            return all_reduce(h)
        if kind == "gather":
            return torch.stack(all_gather(h)).sum(0)
        return collectives.all_to_all_single_autograd(h, None, None, dist.group.WORLD)

    def made(number, its):
        def inner(h):
            for kind in its:
                h = exchanged(kind, torch.sin(h @ weight))
            return torch.tanh(h)

        inner.__name__ = inner.__qualname__ = f"region {number}"
        return inner

    functions = [made(number, its) for number, its in enumerate(kinds)]
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(dist.get_world_size() * 2, 4, requires_grad=True)
        h = x
        for function in functions:
            h = checkpoint(function, h)
        h.square().mean().backward()
        note(f"forward {step}", h)
        note(f"gradients {step}", [x.grad, weight.grad])
        weight.grad = None
