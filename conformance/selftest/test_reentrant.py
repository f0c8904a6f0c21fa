"""What reentrant takes and refuses, what it restores, and what its public functions do."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint as peer

from impls import legacy, reentrant
from impls.reentrant import checkpoint

Checkpoint = Callable[..., Any]
both = pytest.mark.parametrize("checkpoint", [legacy.checkpoint, reentrant.checkpoint])
Pair = namedtuple("Pair", "first second")


@dataclass
class Holder:
    tensor: Any
    other: Any = None


def leaf() -> torch.Tensor:
    return torch.arange(1.0, 4.0).requires_grad_()


def fail(*args: Any) -> None:
    raise AssertionError("the function ran")


def refuse(error: type[BaseException], said: str, run: Callable[[], Any]) -> None:
    with pytest.raises(error, match=said):
        run()
