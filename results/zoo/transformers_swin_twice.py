"""transformers: Swin's switch makes each stage a region and each block inside it too, so blocks run three times a step."""

import sys
from collections import Counter

import torch
import transformers

SIZES = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
torch.manual_seed(0)
model = transformers.SwinModel(transformers.SwinConfig(**SIZES)).train()
model.gradient_checkpointing_enable({"use_reentrant": False})
runs = Counter()
for name, module in model.named_modules():
    if type(module).__name__ == "SwinLayer":
        module.attention.register_forward_pre_hook(lambda *_, name=name: runs.update([name]))
model(torch.randn(2, 3, 32, 32)).pooler_output.sum().backward()
print(f"transformers {transformers.__version__}: forwards in a step with checkpointing, 2 would do")
for name, count in runs.items():
    print(f"  {name}: {count}")
sys.exit(max(runs.values()) > 2)
