"""Programs that train a sharded model: ``fully_shard`` inside of regions and around them."""

from __future__ import annotations

from typing import Any

import torch


def trained(  # noqa: C901 - one program with many switches, of which a case that is printed has few
    checkpoint: Any,
    note: Any,
    device: str,
    *,
    regions: tuple[bool, ...],
    outside: bool,
    leaf: bool,
    units: bool,
    reshard: bool | int,
    mixed: str,
    frozen: bool,
    dropout: float,
    offload: bool,
    prefetch: bool,
    accumulate: int,
    steps: int,
) -> None:
    import itertools

    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = is_region, torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            h = h + self.second(torch.tanh(self.first(h)))
            return torch.nn.functional.dropout(h, dropout) if dropout else h

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

    model, options = Model(), {"reshard_after_forward": reshard}
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for block in model.blocks:
        if frozen:
            block.first.requires_grad_(False)
        if units:
            fully_shard(block.first, **options)
            fully_shard(block.second, **options)
        fully_shard(block, **options)
    fully_shard(model, **options)
    if prefetch:
        for one, other in itertools.pairwise(model.blocks):
            one.set_modules_to_forward_prefetch([other])
            other.set_modules_to_backward_prefetch([one])
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        for part in range(accumulate):
            model.set_requires_gradient_sync(part == accumulate - 1)
            x = torch.randn(3, 4, requires_grad=True)
            loss = model(x if leaf else x * 1).float().square().mean()
            loss.backward()
            note(f"forward {step} {part}", loss)
            note(f"gradients of the input {step} {part}", x.grad)
        note(f"gradients {step}", [None if one.grad is None else one.grad.to_local() for one in model.parameters()])
        note(f"sharded {step}", [type(one).__name__ for one in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", [one.to_local() for one in model.parameters()])
    for one in model.modules():
        if isinstance(one, FSDPModule):
            one.reshard()
    note("whole parameters", [one.full_tensor() for one in model.parameters()])
