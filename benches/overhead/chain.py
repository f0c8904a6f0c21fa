"""The chain that overhead is measured on, k element-wise operators on four elements; and the checkpoints it runs through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from impls import native, nested

Function = Callable[[Tensor], Tensor]
Checkpoint = Callable[..., Tensor]
LENGTHS = 1, 10, 100, 1000
OURS: Mapping[str, Checkpoint] = {"nested": nested.checkpoint, "native": native.checkpoint}


def available() -> tuple[dict[str, Checkpoint], list[str]]:
    """Our checkpoints that run on this machine, by name; and for each of the others, why it does not."""
    try:
        native.load_extension()
    except native.NativeUnavailableError as error:
        return {name: one for name, one in OURS.items() if name != "native"}, [f"native is not available: {error}"]
    return dict(OURS), []


def chain(length: int) -> Function:
    """The function of a region: so many sines, one after the other."""

    def function(x: Tensor) -> Tensor:
        for _ in range(length):
            x = x.sin()
        return x

    return function


def theirs(function: Callable[..., Any], *args: Any) -> Any:
    """PyTorch's non-reentrant checkpoint."""
    return torch_checkpoint(function, *args, use_reentrant=False)


def regions(length: int, implementations: Mapping[str, Checkpoint], count: int = 1) -> dict[str, Callable[[], None]]:
    """Steps over ``count`` chains in a row, each chain a region; and "replay", a plain step that runs each forward twice."""
    function, x, ones = chain(length), torch.ones(4, requires_grad=True), torch.ones(4)

    def replay() -> None:
        y = x
        for _ in range(count):
            function(y)
            y = function(y)
        y.backward(ones)

    def through(implementation: Checkpoint) -> Callable[[], None]:
        def run() -> None:
            y = x
            for _ in range(count):
                y = implementation(function, y)
            y.backward(ones)

        return run

    return {"replay": replay, **{name: through(one) for name, one in implementations.items()}}


def rounds_of(length: int, scale: float) -> tuple[int, int]:
    """How many rounds a chain is timed, and how many calls there are in each."""
    return max(3, int(scale * (200 if length < 1000 else 60))), max(1, 40 // length)
