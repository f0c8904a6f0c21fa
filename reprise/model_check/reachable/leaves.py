"""Leaves whose gradients a step computes, and that are no parameters of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from reprise.model_check.reachable.walk import Known, Walk


def outside_leaves(model: nn.Module, second: Any) -> dict[str, torch.Tensor]:
    """Tensors that require grad, by the path to them, that the model or the loss or the inputs beside it reach.

    Those that cannot be looked for are left out: an object of the user's may raise an error when it is asked for its parts.
    """
    walk = Walk(Known.of(model), is_alike=True)
    for one, name in ((model, "the model"), (second, "the loss" if callable(second) else "example_inputs")):
        try:
            walk.value(one, name, 0)
        except Exception:  # noqa: BLE001 - what is not found is told as not compared
            continue
    tensors = ((name.removeprefix("the model."), one) for name, one in walk.found.items() if isinstance(one, torch.Tensor))
    return {name: one for name, one in tensors if one.is_leaf and one.requires_grad}
