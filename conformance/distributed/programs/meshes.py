"""Programs on meshes: hybrid sharding, tensor parallelism inside of sharding, and attention over a split sequence."""

from __future__ import annotations

from typing import Any

import torch


def trained(
    checkpoint: Any, note: Any, device: str, *, inner: str, regions: tuple[bool, ...], outside: bool, reshard: bool, steps: int
) -> None:
    """A mesh of two dimensions: the ``inner`` one shards parameters, the outer copies them; or that splits, and this shards."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = is_region, torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

        def inner(self, h):
            return h + self.second(torch.tanh(self.first(h)))

        def forward(self, h):
            return checkpoint(self.inner, h) if self.is_region and not outside else self.inner(h)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block(is_region) for is_region in regions)

        def forward(self, h):
            for block in self.blocks:
                h = checkpoint(block, h) if block.is_region and outside else block(h)
            return h

    mesh = dist.init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=("outer", "inner"))
    sharded = mesh if inner == "shards" else mesh["outer"]
    model = Model()
    for block in model.blocks:
        if inner == "splits":
            parallelize_module(block, mesh["inner"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        fully_shard(block, mesh=sharded, reshard_after_forward=reshard)
    fully_shard(model, mesh=sharded, reshard_after_forward=reshard)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + (dist.get_rank() if inner == "shards" else mesh["outer"].get_local_rank()))
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        loss = model(x * 1).square().mean()
        loss.backward()
        note(f"forward {step}", loss)
        note(f"gradients {step}", [x.grad, *(one.grad.to_local() for one in model.parameters())])
        note(f"sharded {step}", [type(one).__name__ for one in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    model.reshard()
    note("whole parameters", [one.full_tensor() for one in model.parameters()])


def masked(checkpoint: Any, note: Any, device: str, *, where: str, regions: int, probability: float, steps: int) -> None:
    """Blocks that are split over ranks draw a mask of what is split, each rank its own, or of what all ranks have."""
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

        def inner(self, h):
            h = torch.tanh(self.first(h))
            if where == "split":
                return self.second(torch.nn.functional.dropout(h, probability))
            return torch.nn.functional.dropout(self.second(h), probability)

        def forward(self, h):
            return h + checkpoint(self.inner, h)

    model = torch.nn.Sequential(*[Block() for _ in range(regions)])
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    for block in model:
        parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(3 + (dist.get_rank() if where == "split" else 0))
    for step in range(steps):
        x = torch.ones(3, 4).cumsum(0).requires_grad_()
        y = model(x)
        y.square().mean().backward()
        note(f"forward {step}", y)
        grads = [one.grad for one in model.parameters()]
        note(f"gradients {step}", [x.grad, *(getattr(one, "full_tensor", lambda one=one: one)() for one in grads)])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()])
    note("what is drawn next", torch.rand(2))


def attended(checkpoint: Any, note: Any, device: str, *, regions: int, heads: int, steps: int) -> None:
    """Attention over a sequence that is split over ranks, in the form that runs on the CPU: without a mask, by products."""
    import torch.distributed as dist
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 12), torch.nn.Linear(4, 4)

        def inner(self, h):
            q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in self.first(h).chunk(3, -1))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.second(mixed.transpose(1, 2).flatten(2))

        def forward(self, h):
            return h + checkpoint(self.inner, h)

    model = torch.nn.Sequential(*[Block() for _ in range(regions)])
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1)
    for step in range(steps):
        x = torch.randn(2, 4 * dist.get_world_size(), 4)
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]), sdpa_kernel(SDPBackend.MATH):
            h = x * 1
            h.requires_grad_()
            loss = model(h).square().mean()
            loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
        note(f"forward {step}", loss)
        note(f"gradients {step}", [h.grad, *(one.grad for one in model.parameters())])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", [*model.parameters()])
