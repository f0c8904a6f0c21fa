"""Programs of expert parallelism: each rank has an expert, and a router says to which ranks tokens go."""

from __future__ import annotations

from typing import Any

import torch


def routed(checkpoint: Any, note: Any, device: str, *, regions: int, tokens: int, steps: int) -> None:
    """Regions in which tokens go to experts and back, to some ranks more of them than to others."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives

    rank, world = dist.get_rank(), dist.get_world_size()

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.expert = torch.nn.Linear(4, world, bias=False), torch.nn.Linear(4, 4)
            torch.nn.init.constant_(self.expert.bias, rank / 4)

        def inner(self, h):
            weights, its = self.router(h).softmax(-1).max(-1, keepdim=True)
            order, sent = its[:, 0].argsort(stable=True), its[:, 0].bincount(minlength=world)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent)
            there, back = received.tolist(), sent.tolist()
            rows = collectives.all_to_all_single_autograd(h[order], there, back, dist.group.WORLD)
            rows = torch.tanh(self.expert(rows))
            rows = collectives.all_to_all_single_autograd(rows, back, there, dist.group.WORLD)
            return weights * rows[order.argsort()]

        def forward(self, h):
            return h + checkpoint(self.inner, h)

    model = torch.nn.Sequential(*[Block() for _ in range(regions)])
    routers = [block.router.weight for block in model]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + rank)
    for step in range(steps):
        x = torch.randn(tokens, 4, requires_grad=True)
        y = model(x)
        y.square().mean().backward()
        for one in routers:
            dist.all_reduce(one.grad)
        note(f"forward {step}", y)
        note(f"gradients {step}", [x.grad, *(one.grad for one in model.parameters())])
        optimizer.step()
        optimizer.zero_grad()
    note("routers", routers)
    note("parameters", [*model.parameters()])
