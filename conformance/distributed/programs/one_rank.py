"""Programs that train a parallel model, and beside it the whole one on each rank, with the inputs of all ranks."""

from __future__ import annotations

from typing import Any

import torch


def beside(
    checkpoint: Any, note: Any, device: str, *, wrapper: str, regions: tuple[bool, ...], outside: bool, steps: int
) -> None:
    """A model under a wrapper, and the same one without wrapper and regions: gradients are means over ranks."""
    import copy

    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = is_region, torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            return h + self.second(torch.tanh(self.first(h)))

        def forward(self, h):
            return checkpoint(self.inner, h) if self.is_region and not outside else self.inner(h)

    class Model(torch.nn.Sequential):
        def forward(self, h):
            for block in self:
                h = checkpoint(block, h) if block.is_region and outside else block(h)
            return h

    model = Model(*[Block(is_region) for is_region in regions])
    whole = copy.deepcopy(model)
    for block in whole:
        block.is_region = False
    if wrapper == "replicated":
        parallel = torch.nn.parallel.DistributedDataParallel(model)
    else:
        for block in model:
            fully_shard(block)
        parallel = fully_shard(model)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, whole)]
    torch.manual_seed(1)
    for step in range(steps):
        inputs = torch.randn(dist.get_world_size(), 3, 4)
        x = inputs[dist.get_rank()].clone().requires_grad_()
        parallel(x * 1).square().mean().backward()
        for one in inputs:
            (whole(one).square().mean() / len(inputs)).backward()
        note(f"gradients {step}", x.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    note("seen parameters", [getattr(one.detach(), "full_tensor", one.detach)() for one in model.parameters()])
    note("expected parameters", [one.detach() for one in whole.parameters()])


def piped(checkpoint: Any, note: Any, device: str, *, schedule: str, regions: int, microbatches: int, steps: int) -> None:
    """A pipeline, and its stages one after the other on each rank: gradients are means over microbatches."""
    import copy

    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules

    rank, world = dist.get_rank(), dist.get_world_size()

    class Part(torch.nn.Sequential):
        is_region = True

        def forward(self, h):
            for layer in self:
                h = checkpoint(layer, h) if self.is_region else layer(h)
            return h

    def layer():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    parts = [Part(*(layer() for _ in range(regions))) for _ in range(world)]
    whole = copy.deepcopy(torch.nn.Sequential(*parts))
    for part in whole:
        part.is_region = False
    stage = PipelineStage(parts[rank], rank, world, torch.device(device))
    made = getattr(schedules, schedule)(stage, microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (parts[rank], whole)]
    torch.manual_seed(1)
    for step in range(steps):
        x, y = torch.randn(2 * microbatches, 4), torch.randn(2 * microbatches, 4)
        made.step(*[x] * (rank == 0), target=y if rank == world - 1 else None)
        for one, other in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            (torch.nn.functional.mse_loss(whole(one), other) / microbatches).backward()
        note(f"gradients {step}", [one.grad for one in parts[rank].parameters()])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    note("seen parameters", [*parts[rank].parameters()])
    note("expected parameters", [*whole[rank].parameters()])
