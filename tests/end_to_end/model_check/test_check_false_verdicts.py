"""reprise check: what would be a verdict that says too little or too much, and is none."""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check import errors
from reprise.model_check.builder import load_build
from reprise.model_check.checking import check
from reprise.model_check.command import main
from reprise.model_check.comparison import NOTHING, Comparison, compare_tensors
from reprise.model_check.report import Result
from reprise.model_check.text.report_text import differences
from tests.support.checked_models import built


def own(function: Callable[..., Any]) -> Implementation:
    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)


def changing_gradients(change: Callable[[torch.Tensor], torch.Tensor]) -> Implementation:
    """Runs the function as it is; gradients of what it is passed are changed."""

    def run(function: Any, x: torch.Tensor) -> Any:
        passed = x.clone()
        passed.register_hook(change)
        return function(passed)

    return own(run)


def differing(result: Result) -> list[str]:
    """The names of the gradients that differ."""
    assert result.comparison is not None
    return [one.name for one in result.comparison.gradients.differing]


class Dead(nn.Module):
    """The gradient of its scale is 0.0 or -0.0: what is passed to the region is multiplied by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda h: self.layer(x + h * 0.0), self.scale * 1, use_reentrant=False)


def test_a_zero_of_another_sign_is_a_divergence() -> None:
    report = check(lambda: (Dead(), torch.ones(4)), impl=changing_gradients(torch.neg))
    (result,) = report.results
    assert (result.verdict, differing(result)) == ("diverges", ["scale"])
    assert not report.agrees


def compared(plain: Any, seen: Any, dtype: torch.dtype = torch.float32, **others: list[float]) -> Any:
    beside = {name: torch.tensor(value, dtype=dtype) for name, value in others.items()}
    first, second = ({"one": torch.tensor(value, dtype=dtype), **beside} for value in (plain, seen))
    return compare_tensors(first, second)


@pytest.mark.parametrize(
    ("plain", "seen", "dtype", "others", "rounding"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 2**-20], torch.float32, {}, True),
        ([1.0, 2.0], [1.0, 1.0], torch.float32, {}, False),
        ([1.0, 2.0], [1.0, 2.0 + 2**-6], torch.bfloat16, {}, True),
        ([1.0, 2.0], [0.5, 1.0], torch.bfloat16, {}, False),
        ([0.25, 0.25], [0.0, 0.0], torch.bfloat16, {"largest": [1.0]}, False),
        ([1e-7, 0.0], [-1e-7, 0.0], torch.float32, {"largest": [1.0]}, True),
        ([1.0, 2.0], [1.0, 3.0], torch.float32, {"mask": [float("-inf")]}, False),
        ([1.0, float("inf")], [2.0, float("inf")], torch.float32, {}, False),
        ([1.0, 2.0], [1.0, float("nan")], torch.float32, {}, False),
    ],
)
def test_rounding_is_small(plain: Any, seen: Any, dtype: torch.dtype, others: dict[str, Any], rounding: bool) -> None:
    found = compared(plain, seen, dtype, **others)
    assert not found.agrees
    assert found.is_rounding is rounding


NAN = float("nan")


@pytest.mark.parametrize(
    ("plain", "seen", "told"),
    [
        ([1.0, 2.0], [NAN, 2.0], "one is NaN in 1 of 2 values where plain is not"),
        (
            [NAN, 2.0],
            [1.0, NAN],
            "one is NaN in 1 of 2 values where plain is not and is not NaN in 1 of 2 values where plain is",
        ),
        ([NAN, 2.0], [NAN, 4.0], "one by 2 (over 1,000,000 units in the last place)"),
        ([float("inf"), 2.0], [float("inf"), 2.0 + 2**-22], "one by 2.4e-07 (1 unit in the last place)"),
        ([2.0, 2.0], [float("inf"), 2.0], "one by inf"),
    ],
)
def test_values_that_are_no_numbers_do_not_hide_how_others_differ(plain: Any, seen: Any, told: str) -> None:
    found = compared(plain, seen, torch.float32)
    assert told in differences(Comparison(NOTHING, found, NOTHING, (), (), ()))[0]


def test_whole_numbers_that_no_double_tells_apart_differ() -> None:
    found = compared([2**53], [2**53 + 1], torch.int64)
    assert not found.agrees


@pytest.mark.parametrize("scale", [0.0, float("nan")])
def test_gradients_that_prove_nothing_are_refused(scale: float) -> None:
    def build() -> Any:
        model, x = built()()
        return model, lambda model: model(x).sum() * scale

    with pytest.raises(TypeError, match="every gradient of the plain step is zero or not finite"):
        check(build, impl="nested")


class Rows(nn.Module):
    """An embedding with sparse gradients in front of a region."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, numbers: torch.Tensor) -> Any:
        return checkpoint(self.layer, self.rows(numbers), use_reentrant=False)


def test_sparse_gradients_are_compared() -> None:
    def build() -> Any:
        return Rows(), torch.tensor([1, 3])

    assert check(build, impl="nested").agrees
    (result,) = check(build, impl=changing_gradients(lambda gradient: gradient * 2)).results
    assert result.verdict == "diverges"
    assert differing(result) == ["rows.weight"]


class Tied(nn.Module):
    """A weight is read as rows, with a sparse gradient, and in a region, with a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Embedding(8, 8, sparse=True), nn.Linear(8, 8, bias=False)
        self.layer.weight = self.rows.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.rows(torch.arange(4)).sum() + checkpoint(self.layer, x, use_reentrant=False).sum()


def test_a_sparse_gradient_where_plains_is_dense_is_a_divergence() -> None:
    def without_gradients(function: Any, x: torch.Tensor, **_: Any) -> Any:
        return function(x).detach()

    (result,) = check(lambda: (Tied(), torch.ones(3, 8)), impl=own(without_gradients)).results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert "gradients: 1 of 1 differ: rows.weight torch.sparse_coo where plain has torch.strided" in differences(
        result.comparison
    )


def test_a_dense_gradient_is_not_equal_to_a_sparse_one() -> None:
    dense = torch.eye(3)
    for one, other in ((dense, dense.to_sparse()), (dense.to_sparse(), dense)):
        assert compare_tensors({"weight": one}, {"weight": other}).differing
        assert compare_tensors({"weight": one}, {"weight": one.clone()}).agrees


def test_a_build_that_is_not_accepted_later_accuses_nobody() -> None:
    calls: list[int] = []

    def build() -> Any:
        calls.append(1)
        return built()() if len(calls) < 3 else None

    with pytest.raises(errors.NotAccepted, match=r"build\(\) returned an object of type NoneType"):
        check(build, impl="nested")


def test_a_module_that_ends_the_process_is_no_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trains_at_once.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be imported: SystemExit: 0 at .*trains_at_once.py:2"):
        load_build("trains_at_once:build")
    assert main(["trains_at_once:build"]) == 2
    assert "cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("ours"), 3), (ValueError("ours"), 3), (TypeError("ours"), 3), (SystemExit(0), 2)]
)
def test_other_ends_are_no_verdict(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(sys.modules["reprise.model_check.checking"], "check", check)
    assert main(["math:sqrt"]) == status
    assert "reprise check: " in capsys.readouterr().err


def test_an_implementation_may_be_called_plain() -> None:
    report = check(built(), impl=["plain", "nested"])
    assert [one.implementation for one in report.results] == ["plain", "nested"]
    assert report.agrees


class Masked(nn.Module):
    """The recomputation of its second step draws another mask of dropout."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 8, dtype=dtype), nn.Linear(8, 8, dtype=dtype)
        self.generator, self.steps = torch.Generator(), 0

    def region(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).tanh()
        if self.steps > 1:
            y = y * (torch.rand(y.shape, generator=self.generator) > 0.5).to(y.dtype)
        return y.square()

    def forward(self, x: torch.Tensor) -> Any:
        self.steps += 1
        return checkpoint(self.region, self.first(x), use_reentrant=False).float().mean() * 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_second_step_are_compared(dtype: torch.dtype) -> None:
    def build() -> Any:
        x = torch.randn(4, 8, dtype=dtype)
        return Masked(dtype), lambda model: model(x)

    report = check(build, impl="nested")
    (result,) = report.results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert result.comparison.gradients.agrees
    assert not result.comparison.is_rounding
    told = "nested diverges\n  nothing differs in the first step, which the table shows\n"
    assert f"{told}  gradients of later steps: 4 of 4 differ: step 2 " in str(report)


class ChangesStates(nn.Module):
    """The recomputation of its second step calls eval() and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.0)
        self.runs = 0

    def region(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        if self.runs == 4:
            self.dropout.eval()
            random.random()
        return self.layer(x).tanh().square()

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.region, self.first(x), use_reentrant=False, preserve_rng_state=False)


def test_streams_and_flags_of_the_second_step_are_compared() -> None:
    report = check(lambda: (ChangesStates(), torch.randn(4, 8)), impl="torch-nonreentrant")
    (result,) = report.results
    assert result.verdict == "diverges"
    told = str(report).splitlines()
    assert "  random number streams are in another state after later steps: step 2 Python" in told
    assert "  train() or eval() differs after later steps: step 2 dropout" in told


class Scaling(nn.Module):
    """A layer with an optional factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return self.linear(x).sin() * scale


class Looks(nn.Module):
    """Looks at its layer's forward before it calls it, and calls a copy of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 8), Scaling()
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> Any:
        forward: Any = self.layer.forward
        copied = copy.deepcopy(self.layer)
        assert copied(x).shape == x.shape
        self.seen += [inspect.signature(forward), forward.__func__, forward.__self__, forward.__name__]
        of_copy: Any = copied.forward
        self.seen += [of_copy.__func__ is Scaling.forward, of_copy.__self__ is copied]
        return self.layer(self.first(x))


def test_forward_of_a_named_module_looks_as_it_was() -> None:
    models: list[Looks] = []

    def build() -> Any:
        models.append(Looks())
        return models[-1], torch.randn(4, 8)

    report = check(build, impl="nested", regions="layer")
    assert (report.agrees, report.results[0].calls) == (True, 1)
    for model in models:
        forward = model.layer.forward
        expected = [inspect.signature(forward), Scaling.forward, model.layer, "forward", True, True]
        assert model.seen[: len(expected)] == expected
        assert "forward" not in vars(model.layer)


class Final(Scaling):
    """A layer whose forward cannot be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":
            raise AttributeError("forward is final")
        super().__setattr__(name, value)


def test_a_forward_that_cannot_be_replaced_is_not_the_models_error() -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(8, 8), Final()), torch.randn(4, 8)

    with pytest.raises(ValueError, match=r"^regions: forward of 1 \(Final\) cannot be replaced: forward is final; let "):
        check(build, impl="nested", regions="1")


def lazy() -> nn.Module:
    return nn.LazyLinear(8)


def traced() -> nn.Module:
    one: nn.Module = torch.jit.trace(nn.Linear(8, 8), torch.ones(4, 8))
    return one


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("first", [lazy, traced])
def test_a_lazy_or_traced_module_is_checked(first: Callable[[], nn.Module]) -> None:
    def build() -> Any:
        model, x = built()()
        model.first = first()  # type: ignore[assignment]
        return model, x

    (result,) = check(build, impl="nested").results
    assert (result.verdict, result.comparison.gradients.total if result.comparison else 0) == ("agrees", 10)


class Opaque(torch.Tensor):
    """A tensor that no operator takes."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.Tensor.to, torch.Tensor.detach):
            raise NotImplementedError("opaque")
        return super().__torch_function__(function, types, args, kwargs)


def test_a_tensor_that_cannot_be_copied_is_not_the_models_error() -> None:
    def build() -> Any:
        model, x = built()()
        model.register_buffer("opaque", torch.ones(2).as_subclass(Opaque))
        return model, x

    with pytest.raises(
        TypeError, match=r"^opaque \(Opaque, torch.strided, on cpu\) cannot be copied, .*NotImplementedError: opaque"
    ):
        check(build, impl="nested")


def in_a_thread(function: Any, *args: Any) -> Any:
    """PyTorch's checkpoint, called by another thread."""
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(checkpoint, function, *args, use_reentrant=False).result()


def in_itself(function: Any, *args: Any) -> Any:
    """PyTorch's checkpoint, which is called again in its recomputation."""
    return checkpoint(lambda *args: checkpoint(function, *args, use_reentrant=False), *args, use_reentrant=False)


@pytest.mark.parametrize("function", [in_a_thread, in_itself])
def test_calls_of_the_implementation_are_no_regions(function: Callable[..., Any]) -> None:
    (result,) = check(built(), impl=own(function)).results
    assert (result.verdict, result.calls, result.recomputations) == ("agrees", 3, 3)


def test_another_thread_of_the_user_has_no_regions() -> None:
    def after(_: Any, x: torch.Tensor) -> torch.Tensor:
        with futures.ThreadPoolExecutor(1) as pool:
            pool.submit(checkpoint, torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False).result()
        return x

    def build() -> Any:
        model, x = built()()
        model.first.register_forward_hook(lambda _, __, result: after(_, result))
        return model, x

    report = check(build, impl="nested")
    assert (report.agrees, len(report.regions)) == (True, 3)
