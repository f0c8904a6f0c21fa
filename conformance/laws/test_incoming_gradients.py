"""Gradients that come in: whatever backward is started with, gradients are plain's."""

from __future__ import annotations

import functools

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.strategies import CORE, programs
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="gradients")


@for_readers("everyday", "wrong gradient", "loss scaling, GradScaler, gradient accumulation, expanded gradient, loss / 4")
@law(programs(always=["seeds"], sometimes={*CORE, "retain", "partial"}), floor=6)
def test_gradients_that_come_in(case: Case) -> None:
    """Incoming gradients that are uneven, expanded, transposed or zero, or of a scaled scalar, give plain's gradients."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "is_grads_batched, vmap, Jacobian")
@law(programs(always=["batched-seeds"]), needs=["subset-requests"], floor=4, effort=0.5, about=["vmap"])
def test_gradients_of_a_batch_of_seeds(case: Case) -> None:
    """torch.autograd.grad with is_grads_batched=True gives plain's gradients."""
    case.equals_plain()
