"""reprise check leaves the process as it was: after a report, after an error, and after an interrupt at any call."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as module_hooks
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode, _get_current_dispatch_mode_stack

from reprise.model_check import process_state, regions
from reprise.model_check import run as run_module
from reprise.model_check.checking import check
from reprise.model_check.process_state import finish, preserved, random_streams
from reprise.model_check.tensors.tensor_difference import is_equal
from tests.support.checked_models import Model, built, early_partial

TARGET: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)


BACKENDS: Any = torch.backends  # its annotations lack what it has
FP32: tuple[Any, ...] = (
    *(BACKENDS, BACKENDS.cuda.matmul, BACKENDS.cudnn, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn),
    *(BACKENDS.mkldnn, BACKENDS.mkldnn.matmul, BACKENDS.mkldnn.conv, BACKENDS.mkldnn.rnn),
)


def precisions() -> list[str]:
    """Of float32 products: ``fp32_precision`` of all backends, and the older setting, which cannot be read beside some."""
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "cannot be read"
    return [older, *(one.fp32_precision for one in FP32)]


def state() -> tuple[Any, ...]:
    """What a check may not leave changed."""
    return (
        TARGET.__code__,
        random_streams(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        torch.get_num_threads(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.flash_sdp_enabled(),
        getattr(torch.utils.deterministic, "fill_uninitialized_memory"),  # noqa: B009 - which its annotations lack
        torch._C._autograd._top_saved_tensors_default_hooks(False) is None,
        precisions(),
        len(_get_current_dispatch_mode_stack()),
        len(torch.overrides._get_current_function_mode_stack()),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        [len(hooks) for name, hooks in vars(module_hooks).items() if name.startswith("_global_") and isinstance(hooks, dict)],
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        torch._C._is_multithreading_enabled(),
        sys.gettrace(),
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
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_device(torch.device("cpu", 0))
    return x


CHANGES: list[Callable[[], object]] = [
    lambda: torch.set_default_dtype(torch.float64),
    lambda: torch.set_default_device("meta"),
    lambda: torch.set_default_device(torch.device("cpu", 0)),
    lambda: torch.use_deterministic_algorithms(True),
    lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    lambda: torch.set_num_threads(torch.get_num_threads() % 2 + 1),
    lambda: torch.set_float32_matmul_precision("high"),
    *(functools.partial(setattr, one, "fp32_precision", "tf32") for one in FP32[:3] + FP32[5:7]),
    *(functools.partial(setattr, one, "fp32_precision", "ieee") for one in FP32[3:5]),
    lambda: torch.autograd.set_detect_anomaly(True),
    lambda: torch.autograd.set_detect_anomaly(False, check_nan=False),
    lambda: torch.set_autocast_enabled("cpu", True),
    lambda: torch.set_autocast_dtype("cpu", torch.float16),
    lambda: torch.set_autocast_cache_enabled(False),
    lambda: module_hooks.register_module_forward_hook(lambda *_: None),
    lambda: torch.set_grad_enabled(False),
    lambda: torch.backends.mkldnn.set_flags(False),
    lambda: setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark),
    lambda: torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled()),
    lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    lambda: saved_tensors_hooks(lambda one: one, lambda one: one).__enter__(),
    lambda: BaseTorchDispatchMode().__enter__(),
    lambda: BaseTorchFunctionMode().__enter__(),
    lambda: torch._C._autograd._saved_tensors_hooks_disable("no"),
    lambda: torch._C._set_multithreading_enabled(False),
    lambda: torch.manual_seed(9),
    lambda: random.seed(9),
    lambda: np.random.seed(9),
]


@pytest.mark.parametrize("change", CHANGES)
def test_each_setting_that_a_run_changes_is_put_back(change: Callable[[], object]) -> None:
    before = state()
    with preserved():
        change()
        assert state() != before
    assert state() == before


@pytest.mark.parametrize("number", range(len(FP32)))
@pytest.mark.parametrize("change", [None, *FP32[:3]], ids=["none", "all", "matmul", "cudnn"])
def test_precisions_that_were_set_before_are_put_back(number: int, change: Any) -> None:
    with preserved():
        FP32[number].fp32_precision = "ieee" if number in {3, 4, 7, 8} else "tf32"
        before = precisions()
        with preserved():
            torch.set_float32_matmul_precision("high")
            if change is not None:
                change.fp32_precision = "ieee"
        assert precisions()[1:] == before[1:]


def test_a_model_that_sets_fp32_precision_is_checked_and_the_process_put_back() -> None:
    def build() -> Any:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        return built()()

    before = state()
    assert check(build, impl="nested", steps=1).agrees
    assert state() == before


def test_what_follows_a_setting_that_cannot_be_put_back_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("cannot be set")

    def changes() -> None:
        with preserved():
            torch.set_grad_enabled(False)
            torch.manual_seed(9)

    monkeypatch.setattr(torch, "set_default_dtype", fails)
    before = state()
    with pytest.raises(RuntimeError, match="cannot be set"):
        changes()
    assert state() == before


def test_an_interrupt_is_not_hidden_by_what_a_setter_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AttributeError("torch._dynamo is half imported")

    monkeypatch.setattr(torch, "use_deterministic_algorithms", fails)
    with pytest.raises(KeyboardInterrupt), preserved():
        raise KeyboardInterrupt


class Accelerator:
    """An accelerator that was not used yet, whose streams are at the seed that it was given last."""

    in_use = False
    seed: int | None = None

    def is_initialized(self) -> bool:
        return self.in_use

    def manual_seed_all(self, seed: int) -> None:
        self.seed = seed

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [torch.tensor([self.seed])]


@pytest.mark.parametrize("is_used", [True, False])
def test_an_accelerator_that_was_not_used_begins_at_the_users_seed(is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Accelerator()
    monkeypatch.setattr(process_state, "_device_module", lambda: one)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        with preserved():
            process_state.seed_all(0)
            one.manual_seed_all(0)  # as torch.manual_seed does to a real one
            one.in_use = is_used
        assert torch.initial_seed() == 7
        assert one.seed == 7


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


class Bound(Model):
    """A model whose layers call PyTorch's checkpoint by a class attribute, a default argument and a partial."""

    of_class = staticmethod(torch.utils.checkpoint.checkpoint)

    def forward(self, x: torch.Tensor, of_default: Callable[..., Any] = torch.utils.checkpoint.checkpoint) -> torch.Tensor:
        calls: tuple[Callable[..., Any], ...] = self.of_class, of_default, early_partial
        x = self.first(x)
        for layer, call in zip(self.layers, calls, strict=True):
            x = call(layer, x, use_reentrant=False)
        return self.last(x)


def raised_in(part: str, error: BaseException) -> Callable[[], Any]:
    """A ``build`` of such models; a part of its third one ends with an error."""
    models = itertools.count(1)

    def fails(*_: Any) -> Any:
        raise error

    def build() -> Any:
        model, is_third = Bound(draws), next(models) == 3
        if part == "hook of a module" and is_third:
            model.layers[1].register_forward_hook(fails)
        if part == "hook of a parameter" and is_third:
            model.first.weight.register_hook(fails)

        def loss(model: nn.Module) -> torch.Tensor:
            value = model(torch.ones(4, 8)).square().mean()
            if part == "backward" and is_third:
                value.register_hook(fails)
            return fails() if part == "loss" and is_third else value

        return model, loss

    return build


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyError("x")], ids=repr)
@pytest.mark.parametrize("part", ["loss", "backward", "hook of a module", "hook of a parameter"])
def test_an_error_or_an_interrupt_in_any_part_leaves_it_so(part: str, error: BaseException) -> None:
    before = state()
    try:
        report = check(raised_in(part, error), impl="torch-nonreentrant", steps=1)
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    else:
        assert report.results[0].verdict == "crashes"
    assert state() == before
    model = Bound(lambda _, x: x)
    model(torch.ones(4, 8)).sum().backward()
    assert model.first.weight.grad is not None


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


@pytest.mark.parametrize("nth", range(1, 4))
def test_an_interrupt_while_values_are_put_back_leaves_none_changed(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, calls = nn.Linear(8, 8), itertools.count(1)
    before = copy.deepcopy(shared.state_dict())
    equal = is_equal

    def interrupted(*tensors: torch.Tensor) -> bool:
        if next(calls) == nth:
            raise KeyboardInterrupt
        return equal(*tensors)

    def made() -> Any:
        model, x = built(lambda _, x: shared.eval()(x))()
        model.first = shared
        return model, x

    monkeypatch.setattr(run_module, "is_equal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check(made, impl="nested", steps=1)
    assert all(torch.equal(one, before[name]) for name, one in shared.state_dict().items())
    assert shared.training
    assert shared.weight.grad is None


def test_work_is_finished_before_an_interrupt_is_raised() -> None:
    done: list[int] = []

    def work() -> None:
        done.append(1)
        if len(done) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(work)
    assert len(done) == 3
    finish(work)
    assert len(done) == 4


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
