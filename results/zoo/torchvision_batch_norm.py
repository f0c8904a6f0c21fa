"""torchvision: with DenseNet's memory_efficient, BatchNorm's running statistics are updated twice a step."""

import sys

import torch
import torchvision


def statistics(checkpointing):
    torch.manual_seed(0)
    options = {"growth_rate": 8, "block_config": (2, 2), "num_init_features": 16, "num_classes": 3}
    model = torchvision.models.DenseNet(memory_efficient=checkpointing, **options).train()
    model(torch.randn(4, 3, 32, 32)).sum().backward()
    return dict(model.named_buffers())


plain, checkpointed = statistics(False), statistics(True)
wrong = [name for name in plain if not torch.equal(plain[name], checkpointed[name])]
print(f"torchvision {torchvision.__version__}: {len(wrong)} of {len(plain)} buffers differ")
for name in wrong[:3]:
    print(f"  {name}: {plain[name].flatten()[0]:.4g} plain, {checkpointed[name].flatten()[0]:.4g} checkpointed")
sys.exit(bool(wrong))
