"""Where faults get at an offloaded model: what it loads, what it draws, and the gradients that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.mutant import Copy


def change_gradients(copy: Copy, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the gradients of loaded copies before they are sent to the parameters."""

    def backward(there: Any, ctx: Any, *grads: torch.Tensor | None) -> Any:
        return there(ctx, *(None if grad is None else changed(grad) for grad in grads))

    copy.call_instead("offload.loaded_copies", "_Attach.backward", backward)


def change_loaded(copy: Copy, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change all values on their way to the computing device."""

    def load(there: Any, self: Any, originals: Any) -> Any:
        return there(self, {name: changed(tensor.detach()) for name, tensor in originals.items()})

    copy.call_instead("offload.transfers", "Route.load", load)


def replay_no_random_numbers(copy: Copy) -> None:
    """Checkpoint slices without the states of random number generators."""
    copy.call_instead(
        "offload.slice_run", "checkpoint", lambda there, *args, **options: there(*args, preserve_rng_state=False, **options)
    )


def is_size(value: Any) -> bool:
    """Whether a value is a torch.Size, which pytree takes for a container."""
    return type(value) is torch.Size
