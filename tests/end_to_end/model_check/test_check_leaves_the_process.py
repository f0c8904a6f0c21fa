"""reprise check leaves the process as it was: after a report, after an error, and after an interrupt at any call."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from reprise.model_check import regions
from reprise.model_check.checking import check
from reprise.model_check.process_state import random_streams
from tests.support.checked_models import Model, built

TARGET: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)


def state() -> tuple[Any, ...]:
    """What a check may not leave changed."""
    return (
        TARGET.__code__,
        random_streams(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        len(_get_current_dispatch_mode_stack()),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        [len(hooks) for name, hooks in vars(module_hooks).items() if name.startswith("_global_") and isinstance(hooks, dict)],
        list(regions._active),
        regions.current_run(),
        regions._state.in_implementation,
    )


def draws(_: Any, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(9)
    random.random()
    np.random.rand()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(True)
    torch.set_num_threads(torch.get_num_threads() % 2 + 1)
    torch.set_float32_matmul_precision("high")
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.set_default_dtype(torch.float32)
    return x


def interrupted_at(number: int, error: BaseException) -> tuple[Callable[[], Any], Iterator[int]]:
    """A ``build`` whose second layer raises an error in its call of this number, and the calls that it took."""
    calls = itertools.count(1)

    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        if next(calls) == number:
            raise error
        return draws(self, x)

    return built(after), calls


OPTIONS: dict[str, Any] = {"impl": ["torch-nonreentrant", "nested"], "explain": True, "budget": "200%", "steps": 1}


def test_a_report_leaves_the_process_as_it_was() -> None:
    before = state()
    check(built(draws), **OPTIONS)
    assert state() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyError("x")], ids=repr)
def test_an_error_or_an_interrupt_at_any_call_leaves_it_so(error: BaseException) -> None:
    build, all_calls = interrupted_at(0, error)
    check(build, **OPTIONS)
    before = state()
    ended = 0
    for number in range(1, next(all_calls), 11):
        build, _ = interrupted_at(number, error)
        try:
            check(build, **OPTIONS)
        except (KeyboardInterrupt, KeyError, ValueError):
            ended += 1
        assert state() == before, f"after call {number}"
    assert ended


def test_an_interrupt_in_build_leaves_it_so() -> None:
    def ends() -> Any:
        draws(None, torch.ones(1))
        raise KeyboardInterrupt

    before = state()
    with pytest.raises(KeyboardInterrupt):
        check(ends)
    assert state() == before


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), KeyError("x")], ids=repr)
def test_modules_of_the_user_keep_their_forward_flags_and_hooks(error: BaseException | None) -> None:
    models: list[Any] = []

    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        if error is not None and len(models) == 3:
            raise error
        return x

    def kept() -> Any:
        models.append(Model(after, call=lambda layer, x: layer(x)).eval())
        return models[-1], torch.randn(4, 8)

    try:
        check(kept, regions="layers.*", impl="nested")
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    for module in itertools.chain.from_iterable(model.modules() for model in models):
        assert "forward" not in vars(module)
        assert not module.training
        assert not {**module._forward_hooks, **module._forward_pre_hooks, **module._backward_hooks}


def test_a_module_that_all_models_share_keeps_its_training_flag() -> None:
    shared = nn.Linear(8, 8)

    def flips(self: Any, x: torch.Tensor) -> torch.Tensor:
        shared.eval()
        return x

    def made() -> Any:
        model, x = built(flips)()
        model.first = shared
        return model, x

    check(made, impl="nested", steps=1)
    assert shared.training


def test_a_module_that_all_models_share_starts_each_run_alike_and_keeps_its_values() -> None:
    shared = nn.Linear(8, 8)
    shared.weight.grad = torch.ones(8, 8)
    before = shared.weight.detach().clone()

    def made() -> Any:
        model, x = built()()
        model.first = shared
        return model, x

    report = check(made, impl="nested")
    assert report.results[0].verdict == "agrees"
    assert not report.initial_values_differ
    assert torch.equal(shared.weight, before)
    assert torch.equal(shared.weight.grad, torch.ones(8, 8))


class Counting(nn.Linear):
    """A layer that counts its runs in a buffer, which it replaces each time."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return super().forward(x) * self.count


def test_a_buffer_that_a_shared_module_replaces_is_put_back() -> None:
    shared = Counting()
    count = shared.count

    def made() -> Any:
        model, x = built()()
        model.first = shared
        return model, x

    report = check(made, impl="nested")
    assert report.results[0].verdict == "agrees"
    assert not report.initial_values_differ
    assert shared.count is count
    assert count == 0
