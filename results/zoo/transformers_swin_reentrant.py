"""transformers: Swin with use_reentrant=True trains on another loss than without checkpointing, and than it recomputes.

Without gradients, as in the forward of a reentrant region, scaled_dot_product_attention takes a fused kernel on the CPU; with
them, as in plain training and in the recomputation, it does not, since the bias it adds to scores requires a gradient.
"""

import sys

import torch
import transformers

SIZES = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}


def loss(use_reentrant):
    torch.manual_seed(0)
    model = transformers.SwinForImageClassification(transformers.SwinConfig(**SIZES)).train()
    if use_reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    return model(torch.randn(16, 3, 32, 32)).logits.square().mean().item()


plain, nonreentrant, reentrant = loss(None), loss(False), loss(True)
print(f"transformers {transformers.__version__}: plain {plain!r}, non-reentrant {nonreentrant!r}, reentrant {reentrant!r}")
sys.exit(reentrant != plain)
