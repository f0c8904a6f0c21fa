"""Contexts for the option context_fn: some that write down when they are entered, one that swallows, PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from conformance.meters.meter import Meter


class Logged(AbstractContextManager[None]):
    """A context that can be entered again and again, and writes down when."""

    log: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.log.append(("enter", self.name))

    def __exit__(self, *_: object) -> None:
        self.log.append(("leave", self.name))


class Runs(Meter):
    """Writes the runs of functions into the same log."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def logged(*args: Any, **kwargs: Any) -> Any:
            Logged.log.append(("run", ""))
            return function(*args, **kwargs)

        return logged


def logging() -> tuple[Logged, Logged]:
    """A context for forward and one for recomputation, which write into one log."""
    return Logged("forward"), Logged("recomputation")


@contextmanager
def _swallow() -> Iterator[None]:
    with suppress(ValueError):
        yield


def swallowing() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """A forward context that swallows a ValueError."""
    return _swallow(), nullcontext()


def selective() -> Any:
    """PyTorch's contexts for a policy that saves the results of matrix products."""
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])


def allowing_changes() -> Any:
    """PyTorch's contexts for a policy that saves the results of matrix products, which may be changed in place."""
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default], allow_cache_entry_mutation=True)


def keeping_draws() -> Any:
    """PyTorch's contexts for a policy that saves what is drawn by torch.bernoulli."""
    return create_selective_checkpoint_contexts([torch.ops.aten.bernoulli.default])
