"""reprise check leaves the process as it was if an interrupt comes just when it begins to put something back."""

from __future__ import annotations

import gc
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from reprise.model_check import checking, process_state, run
from reprise.model_check.checking import check
from tests.end_to_end.model_check.test_check_leaves_the_process import state
from tests.support.checked_models import Model

ENDS = {"__exit__", "finish", "put_back", "restore"}  # Python looks for interrupts where a function begins
FILES = {module.__file__ for module in (checking, process_state, run)}  # which such a function is in, or is called from
STEP = 13


def draws(_: Any, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(9)
    random.random()
    warnings.simplefilter("ignore")
    return x


class Ends:
    """Counts the beginnings of such functions, and ends one of them with an interrupt."""

    def __init__(self, interrupted: int) -> None:
        self.interrupted, self.count = interrupted, 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        files = {one.f_code.co_filename for one in (frame, frame.f_back) if one is not None}
        if event == "call" and frame.f_code.co_name in ENDS and files & FILES:
            self.count += 1
            if self.count == self.interrupted:
                sys.setprofile(None)
                raise KeyboardInterrupt


def checked(shared: nn.Module, ends: Ends) -> None:
    """Check models that share a module, which is a region."""

    def made() -> Any:
        model: Any = Model(draws, call=lambda layer, x: layer(x))
        model.layers[0] = shared
        return model, torch.ones(4, 8)

    with ends.watched():
        check(made, regions="layers.*", impl="nested", steps=1)


def state_with(shared: Any) -> Any:
    values = {name: one.tolist() for name, one in shared.state_dict().items()}
    return state(), [*warnings.filters], values, shared.training, vars(shared).get("forward"), shared.weight.grad


def test_an_interrupt_as_an_end_begins_leaves_the_process_as_it_was() -> None:
    shared, ends = nn.Linear(8, 8), Ends(0)
    checked(shared, Ends(0))  # imports what a check imports
    checked(shared, ends)
    before = state_with(shared)
    numbers = range(1, ends.count, STEP)
    assert len(numbers) > 20
    for number in numbers:
        with pytest.raises(KeyboardInterrupt):
            checked(shared, Ends(number))
        assert state_with(shared) == before, f"after end {number}"
    gc.collect()  # a generator that was not closed would do its work now
    assert state_with(shared) == before
