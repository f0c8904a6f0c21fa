"""timm: with set_grad_checkpointing, BatchNorm's running statistics are updated twice a step."""

import sys

import timm
import torch


def statistics(checkpointing):
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=3).train()
    model.set_grad_checkpointing(checkpointing)
    model(torch.randn(4, 3, 32, 32)).sum().backward()
    return dict(model.named_buffers())


plain, checkpointed = statistics(False), statistics(True)
wrong = [name for name in plain if not torch.equal(plain[name], checkpointed[name])]
print(f"timm {timm.__version__}: {len(wrong)} of {len(plain)} buffers differ")
for name in wrong[:3]:
    print(f"  {name}: {plain[name].flatten()[0]:.4g} plain, {checkpointed[name].flatten()[0]:.4g} checkpointed")
sys.exit(bool(wrong))
