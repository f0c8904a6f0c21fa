"""reprise check: whose an error is, where the user's model and implementation lie in one package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint as of_torch

from impls import Implementation
from impls.nested import checkpoint as nested
from reprise.model_check.checking import check
from reprise.model_check.errors import PlainFails, raised_by
from reprise.model_check.regions import current_run
from reprise.model_check.report import Result
from reprise.model_check.text.report_text import NOT_TOLD_APART
from tests.support import checked_models
from tests.support.checked_models import Block, built


def checkpoint(function: Any, *args: Any) -> Any:
    """One that hands on to nested."""
    return nested(function, *args)


def refusing(function: Any, *args: Any) -> Any:
    return fails(args[0])


def refusing_as_it_packs(function: Any, *args: Any) -> Any:
    def pack(tensor: torch.Tensor) -> Any:
        raise ValueError("ours")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        return function(*args)


def passes_no_json(function: Any, *args: Any) -> Any:
    json.loads("x")
    return function(*args)


def misusing_a_layer(function: Any, *args: Any) -> Any:
    return torch.nn.Linear(3, 3)(args[0])  # the model has such layers, too


def fails(x: torch.Tensor) -> torch.Tensor:
    """Used by the model and by the implementation, both of this file."""
    raise ValueError("whose?")


def is_again() -> bool:
    one = current_run()
    return one is not None and one.number > 0


def method_fails(_: Any, x: torch.Tensor) -> torch.Tensor:
    if is_again():
        raise ValueError("mine")
    return x


def decoding_fails(_: Any, x: torch.Tensor) -> torch.Tensor:
    if is_again():
        json.loads("x")
    return x


def hook_fails(_: Any, x: torch.Tensor) -> torch.Tensor:
    if is_again():
        x.register_hook(lambda _: json.loads("x"))
    return x


def function_fails(_: Any, x: torch.Tensor) -> torch.Tensor:
    return fails(x) if is_again() else x


def right(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x


class Stop(BaseException):
    """No Exception."""


def stopping(function: Any, *args: Any) -> Any:
    raise Stop("here")


def exiting(function: Any, *args: Any) -> Any:
    raise SystemExit(7)


@pytest.mark.parametrize(("function", "error"), [(stopping, "Stop: here"), (exiting, "SystemExit: 7")])
def test_what_is_no_exception_is_a_verdict_too(function: Any, error: str) -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)
    result, other = check(built(right), impl=[one, "nested"], steps=1, explain=True).results
    assert (result.verdict, result.raised_by, result.error) == ("crashes", "implementation", error)
    assert result.where == f" at {__file__}:{function.__code__.co_firstlineno + 1}"
    assert other.verdict == "agrees"


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_in_an_implementation_is_no_verdict(error: type[BaseException]) -> None:
    def interrupted(function: Any, *args: Any) -> Any:
        raise error

    with pytest.raises(error):
        checked(right, interrupted)


def test_a_model_that_ends_a_plain_step_is_told_with_its_line() -> None:
    def ends(_: Any, x: torch.Tensor) -> torch.Tensor:
        raise Stop

    line = ends.__code__.co_firstlineno + 1
    with pytest.raises(PlainFails, match=rf"in forward of step 1 at .*test_check_who_raised\.py:{line}: Stop"):
        check(built(ends), impl="nested")


def returning_nothing(function: Any, *args: Any) -> Any:
    function(*args)


def test_an_implementation_that_leaves_no_loss_is_judged() -> None:
    def build() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        return model, torch.ones(1, 2)

    def build_with_loss() -> Any:
        model, x = build()
        return model, lambda model: model(x) if isinstance(model(x), type(None)) else model(x).sum()

    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=returning_nothing)
    told = "model(example_inputs) returned no", "loss(model) returned an object of type None"
    for made, message in zip((build, build_with_loss), told, strict=True):
        (result,) = check(made, impl=one, regions="0", steps=1).results
        assert (result.verdict, result.raised_by) == ("crashes", "implementation")
        assert message in result.error
        assert "accepted are" not in result.error


class Recomputing(torch.autograd.Function):
    """Recomputes by PyTorch's checkpoint, called in backward."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: torch.Tensor) -> Any:
        ctx.function, ctx.x = function, x.detach()
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x = ctx.x.requires_grad_()
        with torch.enable_grad():
            result = of_torch(ctx.function, x, use_reentrant=False)
        result.backward(gradient)
        return None, x.grad


@pytest.mark.parametrize("differentiates", [False, True])
def test_a_checkpoint_that_calls_pytorchs_in_backward_reaches_it(differentiates: bool) -> None:
    def build() -> Any:
        model, x = built(right)()

        def loss(model: Any) -> torch.Tensor:
            if differentiates:
                torch.autograd.grad(model(x).sum(), model.first.weight)
            return model(x).square().sum()

        return model, loss

    def checkpoint(function: Any, *args: Any) -> Any:
        return Recomputing.apply(function, *args)

    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)
    (result,) = check(build, impl=one, steps=1).results
    assert (result.verdict, result.error) == (
        "diverges" if differentiates else "agrees",
        "",
    )  # its backward accumulates gradients
    assert result.recomputations


def checked(after: Block, function: Callable[..., Any]) -> tuple[Result, str]:
    """A check of a model that is built in this file, as the implementation is."""

    def build() -> Any:
        return built(after)()

    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)
    report = check(build, impl=one, steps=1)
    return report.results[0], str(report)


CASES = [
    (method_fails, checkpoint, "crashes", "model"),
    (right, refusing, "refuses", "implementation"),
    (right, refusing_as_it_packs, "refuses", "implementation"),
    (right, passes_no_json, "refuses", "implementation"),
    (right, misusing_a_layer, "refuses", "implementation"),
    (decoding_fails, checkpoint, "crashes", "model"),
    (function_fails, checkpoint, "crashes", "cannot be told"),
]


@pytest.mark.parametrize(("after", "function", "verdict", "raiser"), CASES)
def test_whose_an_error_is_in_a_file_that_both_share(after: Block, function: Any, verdict: str, raiser: str) -> None:
    result, text = checked(after, function)
    assert (result.verdict, result.raised_by) == (verdict, raiser)
    assert (NOT_TOLD_APART in text) is (raiser == "cannot be told")


@pytest.mark.parametrize(
    ("sources", "raiser"),
    [
        ({checked_models.__file__}, "implementation"),  # in the package, but not in the file that raises
        ({"/elsewhere/model.py"}, "implementation"),
        ({__file__}, "cannot be told"),
    ],
)
def test_what_a_file_of_the_implementation_alone_raises_is_its_own(sources: set[str], raiser: str) -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="whose") as caught:
        fails(torch.ones(1))
    assert raised_by(caught.value, one, sources) == raiser


OF_OTHERS = """
import json, torch

class Decoding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return json.loads("x")

def checkpoint(function, x):
    return Decoding.apply(function(x))
"""


def test_what_an_implementation_calls_in_backward_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_others.py").write_text(OF_OTHERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    (result,) = check(built(right), impl="of_others:checkpoint", steps=1).results
    assert (result.verdict, result.raised_by) == ("refuses", "implementation")


def test_what_a_hook_of_the_models_raises_elsewhere_is_the_models() -> None:
    result, _ = checked(hook_fails, of_torch)
    assert (result.verdict, result.raised_by) == ("crashes", "model")


def test_what_the_models_file_raises_is_the_models_in_the_implementations_package() -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=built)
    with pytest.raises(ValueError, match="whose") as caught:
        fails(torch.ones(1))
    assert raised_by(caught.value, one, {__file__}) == "model"
