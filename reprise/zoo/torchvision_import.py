"""torchvision beside a build of torch for which its compiled operators were not made: its models need none of them."""

from __future__ import annotations

import functools
import importlib
import sys

import torch

_ASKED_FOR = "nms", "qnms"  # operators that importing torchvision looks up


@functools.cache
def import_torchvision() -> torch.library.Library | None:
    """Import torchvision, as transformers, timm and diffusers do, even if its compiled operators do not load.

    In that case the returned library declares the operators that the import looks up, and must be kept; calling them fails.
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
