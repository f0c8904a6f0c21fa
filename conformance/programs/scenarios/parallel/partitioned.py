"""Programs that split a model: tensor and sequence parallelism with DTensor, and pipelines of stages."""

from __future__ import annotations

from typing import Any

import torch


def tensor_parallel(
    checkpoint: Any, note: Any, device: str, *, regions: tuple[bool, ...], sequence: bool, dropout: float, steps: int
) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.norm = is_region, torch.nn.LayerNorm(4)
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

        def inner(self, h):
            h = torch.tanh(self.first(self.norm(h)))
            return self.second(torch.nn.functional.dropout(h, dropout) if dropout else h)

        def forward(self, h):
            return h + (checkpoint(self.inner, h) if self.is_region else self.inner(h))

    model = torch.nn.Sequential(*[Block(is_region) for is_region in regions])
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    for block in model:
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(sequence_dim=0),
                "first": ColwiseParallel(input_layouts=Shard(0)),
                "second": RowwiseParallel(output_layouts=Shard(0)),
            }
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        torch.manual_seed(step + (dist.get_rank() if dropout else 0))
        x = torch.ones(2, 4).cumsum(0).add(dist.get_rank() if sequence else 0).requires_grad_()
        y = model(x)
        y.square().mean().backward()
        note(f"forward {step}", y)
        grads = [one.grad for one in model.parameters()]
        note(f"gradients {step}", [x.grad, *(getattr(one, "full_tensor", lambda one=one: one)() for one in grads)])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()])


def distributed_inputs(checkpoint: Any, note: Any, device: str, *, split: int, keyword: bool, regions: int) -> None:
    """Regions that are given DTensors."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    x = distribute_tensor(torch.randn(4, 4), mesh, [Shard(split)]).requires_grad_()
    weight = distribute_tensor(torch.randn(4, 4), mesh, [Replicate()]).requires_grad_()

    def inner(h, w):
        return torch.tanh(torch.sin(h @ w) @ w)

    h = x
    for _ in range(regions):
        h = checkpoint(inner, h, w=weight) if keyword else checkpoint(inner, h, weight)
    h.full_tensor().square().mean().backward()
    note("forward", h.full_tensor())
    note("gradients", [x.grad.full_tensor(), weight.grad.full_tensor()])
    note("layout of the gradients", [str(x.grad.placements), str(weight.grad.placements)])


def pipeline(checkpoint: Any, note: Any, device: str, *, schedule: str, regions: int, microbatches: int, steps: int) -> None:
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules

    rank, world = dist.get_rank(), dist.get_world_size()

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(regions))

        def forward(self, h):
            for layer in self.layers:
                h = checkpoint(lambda h, layer=layer: torch.sin(torch.tanh(layer(h))), h)
            return h

    several = schedule not in ("ScheduleGPipe", "Schedule1F1B")
    numbers = [rank, rank + world] if several else [rank]
    if schedule == "ScheduleZBVZeroBubble":
        numbers = [rank, 2 * world - 1 - rank]
    parts = [Part() for _ in range(world * (1 + several))]
    mine = [parts[number] for number in numbers]
    stages = [PipelineStage(part, number, len(parts), torch.device(device)) for part, number in zip(mine, numbers, strict=True)]
    made = getattr(schedules, schedule)(stages if several else stages[0], microbatches, loss_fn=torch.nn.functional.mse_loss)
    parameters = [one for part in mine for one in part.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    for step in range(steps):
        x, y = torch.randn(2 * microbatches, 4), torch.randn(2 * microbatches, 4)
        losses = []
        if 0 in numbers and len(parts) - 1 in numbers:
            made.step(x, target=y, losses=losses)
        elif 0 in numbers:
            made.step(x)
        elif len(parts) - 1 in numbers:
            made.step(target=y, losses=losses)
        else:
            made.step()
        note(f"forward {step}", losses)
        note(f"gradients {step}", [one.grad for one in parameters])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", parameters)


def split_backward(checkpoint: Any, note: Any, device: str, *, regions: int, group: bool, exchange: bool) -> None:
    """Gradients of the input first and those of the weights later, as zero bubble pipelines split a backward."""
    import contextlib

    import torch.distributed as dist
    from torch.distributed.nn.functional import all_reduce
    from torch.utils.checkpoint import GraphExecGroup

    weights = [torch.nn.Parameter(torch.randn(4)) for _ in range(regions)]
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, 4, requires_grad=True)

    def inner(h, weight):
        z = torch.sin(weight).cos()  # what the second half differentiates is none of what the first one has unpacked
        h = torch.tanh(h) + z
        return z, torch.sin(all_reduce(h) if exchange else h)

    h, products = x, []
    for weight in weights:
        z, h = checkpoint(inner, h, weight)
        products.append(z)
    loss = h.square().mean()
    halves = GraphExecGroup() if group else contextlib.nullcontext()
    with halves:
        dx, *dz = torch.autograd.grad(loss, [x, *products], retain_graph=True)
    with halves:
        dw = [torch.autograd.grad(z, weight, grad)[0] for z, weight, grad in zip(products, weights, dz, strict=True)]
    note("forward", loss)
    note("grad", [dx, *dw])
