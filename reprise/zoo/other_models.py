"""Architectures of timm, torchvision and diffusers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reprise.zoo.architecture import BATCH, Architecture


@dataclass(frozen=True)
class Timm:
    """A model of timm by its name, with arguments, and the size of its images."""

    name: str
    arguments: Mapping[str, Any]
    size: int = 32

    def __call__(self) -> Any:
        """The model with checkpointing on, and images."""
        import timm

        model = timm.create_model(self.name, pretrained=False, num_classes=3, **self.arguments)
        head = model.get_classifier()
        if not head.weight.any():  # a Mixer's head starts at zero: all gradients before it would be zero
            torch.nn.init.normal_(head.weight, std=0.02)
        model.set_grad_checkpointing(True)
        return model.train(), torch.randn(BATCH, 3, self.size, self.size)


def densenet() -> Any:
    """DenseNet of torchvision, memory efficient."""
    from torchvision.models import DenseNet

    model = DenseNet(growth_rate=8, block_config=(2, 2, 2), num_init_features=16, num_classes=3, memory_efficient=True)
    return model.train(), torch.randn(BATCH, 3, 32, 32)


@dataclass(frozen=True)
class Diffusers:
    """A model of diffusers by the name of its class, with arguments and inputs."""

    name: str
    arguments: Mapping[str, Any]
    inputs: Callable[[], dict[str, Any]]

    def __call__(self) -> Any:
        """The model with checkpointing on, and its inputs."""
        import diffusers

        model = getattr(diffusers, self.name)(**self.arguments)
        model.enable_gradient_checkpointing()
        return model.train(), self.inputs()


def _images(channels: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


def _times() -> torch.Tensor:
    return torch.tensor([3, 7])


def _flux_inputs() -> dict[str, torch.Tensor]:
    return {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, 8, 16),
        "pooled_projections": torch.randn(2, 16),
        "timestep": torch.rand(2),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
    }


_UNET = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
_CONDITIONED = {
    **_UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 8,
}
_FLUX = {
    "patch_size": 1,
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "pooled_projection_dim": 16,
    "axes_dims_rope": (4, 4, 8),
}
_DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "sample_size": 16,
    "num_layers": 4,
    "norm_num_groups": 1,
}
_SD3 = {
    "sample_size": 16,
    "patch_size": 2,
    "in_channels": 4,
    "num_layers": 3,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 16,
    "out_channels": 4,
}
TIMM: Mapping[str, Timm] = {
    "ViT": Timm("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 6, "num_heads": 4}),
    "Swin": Timm(
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "ConvNeXt": Timm("convnext_atto", {"depths": (2, 2, 2, 2), "dims": (16, 16, 32, 32)}, 64),
    "MLP-Mixer": Timm("mixer_s16_224", {"img_size": 32}),
    "ResNet": Timm("resnet10t", {}),
    "EfficientNet": Timm("efficientnet_lite0", {}),
    "RegNet": Timm("regnetx_002", {}),
}
DIFFUSERS: Mapping[str, Diffusers] = {
    "UNet2D": Diffusers(
        "UNet2DModel",
        {**_UNET, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        lambda: {"sample": _images(), "timestep": _times()},
    ),
    "UNet2DCondition": Diffusers(
        "UNet2DConditionModel",
        {**_CONDITIONED, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        lambda: {"sample": _images(4), "timestep": _times(), "encoder_hidden_states": torch.randn(2, 8, 16)},
    ),
    "AutoencoderKL": Diffusers(
        "AutoencoderKL",
        {**_UNET, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        lambda: {"sample": _images()},
    ),
    "DiT": Diffusers(
        "DiTTransformer2DModel",
        _DIT,
        lambda: {"hidden_states": _images(4), "timestep": _times(), "class_labels": torch.tensor([1, 2])},
    ),
    "SD3": Diffusers(
        "SD3Transformer2DModel",
        _SD3,
        lambda: {
            "hidden_states": _images(4),
            "timestep": _times(),
            "encoder_hidden_states": torch.randn(2, 8, 16),
            "pooled_projections": torch.randn(2, 16),
        },
    ),
    "Flux": Diffusers("FluxTransformer2DModel", _FLUX, _flux_inputs),
}


def architectures() -> Iterator[Architecture]:
    """The models of timm, torchvision and diffusers."""
    for name, model in TIMM.items():
        yield Architecture(name, "timm", "vision", model)
    yield Architecture("DenseNet", "torchvision", "vision", densenet)
    for name, other in DIFFUSERS.items():
        yield Architecture(name, "diffusers", "diffusion", other)
