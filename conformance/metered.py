"""A module that is a region's function stays a module when meters are put around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class MeteredModule(torch.nn.Module):
    """Calls what meters made of a module, which is its only child, and is in the mode that the module is in."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.__wrapped__, self.call = module, module, call

    @property
    def training(self) -> bool:
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_modules" in vars(self):  # else it is being made
            self.module.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)
