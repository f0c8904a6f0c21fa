"""reprise check: everything that a report says is planted here, and bad input is refused in one line."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reprise
from impls import Implementation
from reprise.model_check.checking import check
from reprise.model_check.command import main
from reprise.model_check.remedies import WARNINGS
from reprise.model_check.text.report_text import EXPLAIN
from tests.support.checked_models import Block, built, built_counting

HERE = "tests.end_to_end.model_check.test_check_reports"
ROOT = Path(__file__).parents[3]
models: list[Any] = []  # of which the last is the one that runs


def build() -> Any:
    model, x = built(lambda _, x: torch.dropout(x, 0.3, True))()
    model.first.requires_grad_(False)
    models[:] = [model]
    return model, x.requires_grad_()


def own(checkpoint: Callable[..., Any]) -> Implementation:
    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)


def scaled(function: Any, *args: Any) -> Any:
    return function(*args) * 1.5


def cut_off(function: Any, *args: Any) -> Any:
    return function(*args).detach().requires_grad_()


def training_what_is_frozen(function: Any, *args: Any) -> Any:
    models[-1].first.weight.grad = torch.ones(8, 8)
    return function(*args)


def drawing(function: Any, *args: Any) -> Any:
    torch.rand(1)
    return function(*args)


def drawing_of_numpy(function: Any, *args: Any) -> Any:
    np.random.rand()
    return function(*args)


def switching_to_eval(function: Any, *args: Any) -> Any:
    models[-1].eval()
    return function(*args)


def wrong_from_the_fourth_call_on(function: Any, *args: Any) -> Any:
    model = models[-1]
    model.calls = getattr(model, "calls", 0) + 1
    result = function(*args)
    return result * 2 if model.calls > 3 else result


FAULTS: list[tuple[Callable[..., Any], str]] = [
    (scaled, "loss: 1 of 1 differ"),
    (scaled, "gradients: 9 of 9 differ"),
    (cut_off, "gradients: 7 of 9 missing: layers.0.linear.weight"),
    (training_what_is_frozen, "gradients: 1 that plain does not have: first.weight"),
    (drawing, "random number streams are in another state after the step: torch"),
    (drawing_of_numpy, "random number streams are in another state after the step: numpy"),
    (switching_to_eval, "train() or eval() differs after the step: "),
    (wrong_from_the_fourth_call_on, "losses of later steps: 1 of 1 differ"),
    (wrong_from_the_fourth_call_on, "parameters after the last step: "),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_what_differs_is_told(fault: Callable[..., Any], told: str) -> None:
    report = check(build, impl=own(fault))
    assert report.results[0].verdict == "diverges"
    assert f"\n  {told}" in str(report)


def test_a_fault_of_a_later_step_alone_is_told_as_such() -> None:
    text = str(check(build, impl=own(wrong_from_the_fourth_call_on)))
    assert "\n  loss: " not in text
    assert "\n  gradients: " not in text


def flipped(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    self.eval()
    return x


def hooked(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.linear.register_forward_hook(lambda *_: None)
    return x


def appended(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.detach())
    return x * torch.stack(self.kept).sum(0)


SCALE = torch.ones(())


def built_frozen() -> Any:
    model, x = built()()
    model.first.requires_grad_(False)
    return model, x


def built_with_batch_norm() -> Any:
    return built(lambda self, x: self.get_submodule("extra")(x), lambda: nn.BatchNorm1d(8))()


def built_changing() -> Any:
    model, x = built(lambda _, x: x * SCALE)()
    SCALE.fill_(1)
    model.last.register_forward_hook(lambda *_: [SCALE.data.fill_(3)].clear())
    return model, x


def drawn(draw: Callable[[], float]) -> Callable[[], Any]:
    after: Block = lambda _, x: x * draw()  # noqa: E731 - what a layer does with its result
    return built(after)


def paired(x: torch.Tensor) -> Any:
    return x.sin(), (x.exp(),)


class Pair(nn.Module):
    """Its region returns a tuple in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(paired, self.first(x), use_reentrant=False)


def built_scripted() -> Any:
    model, x = built()()
    model.layers[1] = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    return model, x


PLANTED: dict[str, tuple[Callable[[], Any], str]] = {
    "buffers": (built_with_batch_norm, "layers.1.extra"),
    "inputs": (built_frozen, "layers.0 ("),
    "outputs": (lambda: (Pair(), torch.ones(1, 2)), "output[1][0] of paired ("),
    "training flags": (built(flipped), "layers.1 ("),
    "Python's random numbers": (drawn(random.random), "layers.1 ("),
    "numpy's random numbers": (drawn(lambda: float(np.random.rand())), "layers.1 ("),
    "own generators": (built(lambda self, x: x * torch.rand(8, generator=self.generator)), "layers.1.generator ("),
    "hooks": (built(hooked), "layers.1 ("),
    "TorchScript": (built_scripted, "layers.1 ("),
    "cache": (built(appended), "layers.1.kept"),
    "changed in place": (built_counting, "layers.1.calls ("),
    "outside tensors": (built_changing, "global SCALE ("),
}


NOTHING_AGAIN = "no region's function ran again: no gradient passed through them, or the implementation recomputes nothing"


class Reentrant(nn.Module):
    """Asks for PyTorch's reentrant checkpoint, with an input that does not require grad."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=True))


def test_a_model_that_asks_for_the_reentrant_checkpoint_is_told_how_to_check_that() -> None:
    told = "use_reentrant=True is ignored here (calls of the model with it: 1); --impl torch-reentrant checks that"
    report = check(lambda: (Reentrant(), torch.ones(1, 2)), impl="nested", steps=1)
    assert report.reentrant_calls == 1
    assert told in str(report).splitlines()
    report = check(lambda: (Reentrant(), torch.ones(1, 2)), impl=["nested", "torch-reentrant"], steps=1, explain=True)
    assert told not in str(report)
    assert [one.verdict for one in report.results] == ["agrees", "diverges"]
    assert NOTHING_AGAIN in report.results[1].explanation.lines


def test_an_implementation_that_recomputes_nothing_is_not_taken_for_one_without_gradients() -> None:
    (result,) = check(build, impl=own(scaled), steps=1, explain=True).results
    assert (result.verdict, result.recomputations) == ("diverges", 0)
    assert NOTHING_AGAIN in result.explanation.lines


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", WARNINGS)
def test_each_warning_is_given_with_its_place_and_remedy(kind: str) -> None:
    made, place = PLANTED[kind]
    report = check(made, impl="torch-nonreentrant" if kind == "TorchScript" else "torch-reentrant", steps=1)
    message, remedy = WARNINGS[kind]
    (warned,) = [one for one in report.results[0].warnings if one.kind == kind]
    assert warned.places[0].startswith(place)
    assert f"  warning: {message}: {place}" in str(report)
    assert f"\n    {remedy}" in str(report)


def test_an_error_of_the_step_is_told_with_the_users_line() -> None:
    def fails(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        return x if len(self.kept) == 1 else dict[str, Any]()["mine"]

    line = fails.__code__.co_firstlineno + 2
    report = check(built(fails), impl="torch-nonreentrant", steps=1)
    assert f"torch-nonreentrant crashes at {__file__}:{line}: KeyError: 'mine'" in str(report)


class Answers(nn.Module):
    """Answers in a nested container, with whole numbers among them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return {"one": [self.layers(x)], "other": (self.layers(y), torch.ones(2, dtype=torch.long))}


@pytest.mark.parametrize("inputs", [(torch.ones(1, 2), torch.ones(3, 2)), {"x": torch.ones(1, 2), "y": torch.ones(3, 2)}])
def test_example_inputs_may_be_a_tuple_or_a_dict_and_outputs_nested(inputs: Any) -> None:
    report = check(lambda: (Answers(), inputs), regions="layers", impl="nested", steps=1)
    assert (report.agrees, report.results[0].calls) == (True, 2)


def not_a_function() -> Any:
    return 1


def no_regions() -> Any:
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(12))), torch.ones(1)


def needs_no_gradient() -> Any:
    return nn.Sequential(nn.Linear(1, 1)).requires_grad_(False), torch.ones(1)


def detached() -> Any:
    return nn.Sequential(nn.Linear(1, 1)), lambda model: model(torch.ones(1)).detach()


def failing_in_lines() -> Any:
    raise ValueError("one line\n\n  another\n")


async def awaited() -> Any:
    return build()


def with_awaited_loss() -> Any:
    async def loss(model: nn.Module) -> Any:
        return model(torch.ones(1))

    return nn.Sequential(nn.Linear(1, 1)), loss


INVALID = [
    ([], "the following arguments are required: build"),
    (["x"], "it must be of the form pkg.mod:function"),
    (["no_such_module:build"], "cannot be imported: ModuleNotFoundError"),
    ([f"{HERE}:no_such_name"], "cannot be imported: AttributeError"),
    ([f"{HERE}:HERE"], "of type str; it must be a callable"),
    ([f"{HERE}:not_a_function"], "build() returned an object of type int"),
    ([f"{HERE}:no_regions"], "no region found"),
    ([f"{HERE}:no_regions", "--regions", "layer*"], "'layer*' matches no module"),
    ([f"{HERE}:needs_no_gradient", "--regions", "0"], "no parameter of the model requires grad"),
    ([f"{HERE}:detached", "--regions", "0"], "loss(model) does not require grad"),
    ([f"{HERE}:build", "--impl", "no-such-one"], "no-such-one"),
    ([f"{HERE}:build", "--impl", "nestd"], "; did you mean 'nested'?"),
    ([f"{HERE}:build", "--impl", "own/mine.py:checkpoint"], "accepted is a module: PYTHONPATH=own --impl mine:checkpoint"),
    ([f"{HERE}:build", "--impl", "offload"], "which is no checkpoint"),
    ([f"{HERE}:build", "--steps", "0"], "steps is 0; it must be a whole number, 1 or more"),
    ([f"{HERE}:build", "--steps", "x"], "invalid int value: 'x'"),
    ([f"{HERE}:build", "--regions", ""], "regions: '' is no glob of module names; accepted is text such as 'layers.*'"),
    ([f"{HERE}:build", "--device", "nowhere"], "device is 'nowhere'"),
    ([f"{HERE}:build", "--device", "meta"], "device is 'meta', whose tensors have no values to compare"),
    ([f"{HERE}:failing_in_lines"], "ValueError: one line another"),
    ([f"{HERE}:awaited"], "build() returned an object of type coroutine"),
    ([f"{HERE}:with_awaited_loss", "--regions", "0"], "loss(model) returned an object of type coroutine"),
    ([f"{HERE}:build", "--budget", "much"], "budget is 'much'; accepted are bytes"),
    ([f"{HERE}:build", "--budget", "9" * 400 + "GiB"], "budget is too large"),
    ([f"{HERE}:build", "--budget", "9" * 400 + "%"], "budget is too large"),
    ([f"{HERE}:build", "--budget", "9" * 5000], "budget is too large"),
    ([f"{HERE}:build", "--json", "/"], "--json is /, which is a folder"),
    ([f"{HERE}:build", "--no-such-option"], "unrecognized arguments"),
]


@pytest.mark.parametrize(("arguments", "told"), INVALID)
def test_bad_input_is_refused_in_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True, action="always") as warned:
        assert main(arguments) == 2
    assert not warned
    shown = capsys.readouterr()
    (line,) = [one for one in shown.err.splitlines() if not one.startswith("... ")]
    assert line.startswith("reprise check: ")
    assert told in line
    assert not shown.out


def test_the_ten_largest_modules_are_named() -> None:
    with pytest.raises(ValueError, match="no region found") as caught:
        check(no_regions)
    assert str(caught.value).count(" parameters)") == 10


def test_json_is_strict_where_a_difference_is_no_number(tmp_path: Path) -> None:
    def endless(function: Any, *args: Any) -> Any:
        return function(*args) * float("inf")

    report = check(build, impl=own(endless), steps=1)
    assert report.results[0].verdict == "diverges"
    content = json.loads(report.as_json(), parse_constant=lambda name: pytest.fail(f"{name} is not in JSON"))
    assert content["results"][0]["comparison"]["loss"]["differing"][0]["absolute"] is None


def test_a_report_that_cannot_be_written_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{HERE}:build", "--impl", "nested", "--steps", "1", "--json", "/proc/report.json"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("reprise check: --json cannot be written: ")


OF_A_USER = """
import reprise
from tests.end_to_end.model_check.test_check_reports import build, built_with_batch_norm

def test_right():
    reprise.assert_equals_plain(build, impl="nested")

def test_wrong():
    reprise.assert_equals_plain(built_with_batch_norm, impl=["nested"])
"""


def test_the_assertion_serves_a_users_own_tests(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(OF_A_USER, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed, 1 passed" in ran.stdout
    assert "AssertionError: checkpointing changes the step" in ran.stdout
    assert "buffers are updated again by the recomputation, in: layers.1.extra" in ran.stdout


def test_the_assertion_has_the_explanation_if_it_is_asked_for() -> None:
    with pytest.raises(AssertionError) as without:
        reprise.assert_equals_plain(built_with_batch_norm, impl="nested", steps=1)
    with pytest.raises(AssertionError) as explained:
        reprise.assert_equals_plain(built_with_batch_norm, impl="nested", steps=1, explain=True)
    told = "reads another value of buffer layers.1.extra.num_batches_tracked"
    assert (told in str(without.value), told in str(explained.value)) == (False, True)


def test_what_a_user_imports_is_there() -> None:
    assert reprise.check is check
    assert {"check", "assert_equals_plain", "Report"} <= {*reprise.__all__}


def test_lines_are_the_users_if_the_clone_is_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    program = (
        "import torch; from torch import nn; from torch.utils.checkpoint import checkpoint\n"
        "class Model(nn.Sequential):\n"
        "    def forward(self, x): return checkpoint(self[0], x, use_reentrant=False)\n"
        "def fails(): return dict()['x']\n"
        "def build(): return Model(nn.BatchNorm1d(2)), torch.randn(3, 2)\n"
    )
    (tmp_path / "mine.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "link")}
    command = [sys.executable, "-m", "reprise", "check", "mine:build", "--impl", "nested", "--steps", "1", "--explain"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (ran.returncode, f"smallest set of regions that shows it: 0 ({tmp_path / 'mine.py'}:3)" in ran.stdout) == (1, True)
    ran = subprocess.run(
        [*command[:4], "mine:fails"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert f"build failed at {tmp_path / 'mine.py'}:4: KeyError" in ran.stderr


def test_buffers_are_told_once_of_one_step() -> None:
    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x

    one, two = (str(check(built(counted), impl="torch-nonreentrant", steps=steps)) for steps in (1, 2))
    assert (one.count("layers.1.count by"), two.count("layers.1.count by")) == (1, 2)


def test_a_crash_is_said_to_be_explained_on_request() -> None:
    def fails(_: Any, x: torch.Tensor) -> torch.Tensor:
        if next(calls[0]):
            raise KeyError("mine")
        return x

    def build() -> Any:
        calls[:] = [itertools.count()]
        return built(fails)()

    calls: list[Iterator[int]] = []
    asked, explained = (check(build, impl="torch-nonreentrant-full", steps=1, explain=explain) for explain in (False, True))
    assert asked.results[0].verdict == explained.results[0].verdict == "crashes"
    assert EXPLAIN in str(asked)
    assert EXPLAIN not in str(explained)
    assert "smallest set of regions that shows it: layers.1" in str(explained)
