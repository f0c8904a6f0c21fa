"""Training: steps of an optimizer, gradient accumulation, and one function over time."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.scenarios.models import training
from conformance.programs.strategies import named
from conformance.programs.sums import Sums
from conformance.rows.for_readers import for_readers

_OPTIMIZERS = st.sampled_from(["SGD", "momentum", "AdamW", "foreach"])
_trained = functools.partial(
    named,
    training.trained,
    Sums(1024),
    optimizer=_OPTIMIZERS,
    accumulate=st.sampled_from([1, 4]),
    regions=st.integers(1, 2),
    nested=st.booleans(),
)


@for_readers("everyday", "wrong gradient", "training, SGD, momentum, AdamW, foreach, gradient accumulation, optimizer step")
@law(_trained(rate=st.just(0.0)), floor=6)
def test_steps_of_training(case: Case) -> None:
    """After each step of SGD, momentum or AdamW, over one microbatch or four, weights and the optimizer's state are plain's."""
    case.equals_plain_unwrapped()


@for_readers("everyday", "wrong gradient", "training, dropout, SGD, AdamW, gradient accumulation, optimizer step")
@law(_trained(rate=st.just(0.5)), needs=["rng"], floor=6)
def test_steps_of_training_with_dropout(case: Case) -> None:
    """A model with dropout has plain's weights after each step, and the optimizer plain's state."""
    case.equals_plain_unwrapped()


_ORDERS = st.sampled_from(["first to last", "last to first", "each at once"])
_another = functools.partial(named, training.another_time, swapped=st.booleans(), order=_ORDERS, nested=st.booleans())


@for_readers("everyday", "wrong gradient", "variable sequence length, last batch, dtype, recurrent network, siamese network")
@law(_another(change=st.sampled_from(["shape", "rank", "dtype", "arguments"])), floor=6, effort=1.5)
def test_the_same_function_another_time(case: Case) -> None:
    """A function that is called again on another shape, rank, dtype or number of tensors gives each call its own gradients."""
    case.equals_plain_unwrapped()


@for_readers("everyday", "wrong gradient", "train, eval, dropout rate, schedule")
@law(_another(change=st.sampled_from(["mode", "rate"])), needs=["rng"], floor=6)
def test_the_same_module_in_another_mode(case: Case) -> None:
    """A module with dropout that is called again in another mode, or at another rate, draws in each recomputation as it did."""
    case.equals_plain_unwrapped()


@for_readers("everyday", "wrong gradient", "autocast, mixed precision, validation step")
@law(_another(change=st.just("autocast")), needs=["autocast"], floor=5)
def test_the_same_function_under_another_autocast(case: Case) -> None:
    """A function that is called once under autocast and once without gives each call the gradients of its own precision."""
    case.equals_plain_unwrapped()
