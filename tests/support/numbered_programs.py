"""Laws over programs with a number, and checkpoints that behave differently for some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from conformance.judging.explorer import Explorer
from conformance.judging.judge import Case
from conformance.judging.law import Law, Profile
from conformance.judging.result import Result
from conformance.programs.strategies import named
from impls import Implementation, get
from impls.nested import checkpoint as nested

NESTED = get("nested")
PROFILE = Profile(12, 60, True)
Checkpoint = Callable[..., Any]


def numbered(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    y = checkpoint(lambda h, number: h.sin().exp(), x, number)
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [x.grad])


def deep(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    checkpoint(lambda h: checkpoint(torch.sin, h) * number, x).sum().backward()
    note("gradients 0", [x.grad])


def zero(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    checkpoint(lambda h: h.sin() * 0, x + number).sum().backward()
    note("gradients 0", [x.grad])


def equal(case: Case) -> None:
    """The law that most laws are."""
    case.equals_plain()


def made(check: Callable[[Case], None] = equal, program: Any = numbered, **options: Any) -> Law:
    """A law over programs with the numbers 0 to 3."""
    return Law("made", "family", "It holds.", check, named(program, number=st.integers(0, 3)), **{"floor": 3, **options})


def held(law: Law, checkpoint: Checkpoint = nested, declares: Implementation = NESTED, declared: bool = True) -> Result:
    """The result for a checkpoint that makes the claims of another implementation."""
    return Explorer("cpu", PROFILE, 0).hold(law, Implementation("fake", checkpoint, declared=declared), declares)


def by_number(**behaviours: Checkpoint) -> Checkpoint:
    """A checkpoint that behaves differently for single numbers."""

    def checkpoint(function: Any, x: Any, number: int) -> Any:
        return behaviours.get(f"n{number}", nested)(function, x, number)

    return checkpoint


def refusing(*_: Any) -> None:
    raise NotImplementedError("recomputation of this number is not supported")


def crashing(*_: Any) -> None:
    raise KeyError("number")


def diverging(function: Any, *args: Any) -> Any:
    return nested(function, *args) * 2
