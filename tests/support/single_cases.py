"""One case of one program: what a checkpoint does with it, and what is said of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.judging.judge import Case, Outcome, judge
from conformance.programs.program import Named
from impls import Implementation

Checkpoint = Callable[..., Any]


def twice(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, requires_grad=True, device=device)
    note("leaves", (x,))

    def f(h: torch.Tensor) -> torch.Tensor:
        return h.sin().exp()

    y = checkpoint(f, x)
    note("forward", y)
    y.sum().backward(retain_graph=True)
    note("gradients 0", [x.grad])
    y.sum().backward()
    note("gradients 1", [x.grad])


def raises(checkpoint: Any, note: Any, device: str, *, kind: str) -> None:
    x = torch.ones(2, requires_grad=True, device=device)
    note("leaves", (x,))

    def f(h: torch.Tensor) -> torch.Tensor:
        raise {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[kind]("program")

    checkpoint(f, x)


def flat(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, requires_grad=True, device=device)
    note("leaves", (x,))
    y = checkpoint(lambda h: (h * 0).sin(), x)
    y.sum().backward()
    note("gradients 0", [x.grad])


TWICE = Named(twice)


def equal(case: Case) -> None:
    """The law that most laws are."""
    case.equals_plain()


def case(checkpoint: Checkpoint, program: Named = TWICE, *capabilities: str) -> Case:
    return Case(program, Implementation("fake", checkpoint, capabilities=frozenset(capabilities)), "cpu")


def outcome(checkpoint: Checkpoint, program: Named = TWICE, check: Callable[[Case], None] = equal) -> Outcome:
    return judge(check, case(checkpoint, program), recomputes=True, gradients=True)


def raising(error: BaseException, gradient: float | None = None) -> Checkpoint:
    """A checkpoint that raises, after it has left a gradient."""

    def checkpoint(function: Any, x: torch.Tensor) -> torch.Tensor:
        if gradient is not None:
            x.grad = torch.full_like(x, gradient)
        raise error

    return checkpoint
