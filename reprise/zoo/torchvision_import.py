"""torchvision beside a build of torch for which its compiled operators were not made: its models need none of them."""

from __future__ import annotations

import functools
import importlib
import sys

import torch

_ASKED_FOR = "nms", "qnms"  # by its import


@functools.cache
def import_torchvision() -> torch.library.Library | None:
    """Import torchvision, as transformers, timm and diffusers do; without its compiled operators if they do not load.

    What is returned declares the operators that its import asks for, and must be kept; calling them fails.
    """
    try:
        importlib.import_module("torchvision")
        return None
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in _ASKED_FOR:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
        return library
