"""reprise check: an implementation that leaves the process in another state than plain steps do is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules import module as module_hooks
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode

from impls import Implementation
from reprise.model_check.checking import check
from reprise.model_check.process_state import Stacks, preserved, process_state
from tests.support.checked_models import built


def same(one: Any) -> Any:
    return one


def leave_hooks() -> None:
    saved_tensors_hooks(same, same).__enter__()


LEFT: list[tuple[Callable[[], object], str]] = [
    (leave_hooks, "hooks for saved tensors"),
    (lambda: torch._C._autograd._saved_tensors_hooks_disable("no"), "hooks for saved tensors being disabled"),
    (lambda: BaseTorchDispatchMode().__enter__(), "dispatch modes"),
    (lambda: BaseTorchFunctionMode().__enter__(), "function modes"),
    (lambda: torch.set_autocast_cache_enabled(False), "autocast's cache"),
    (lambda: torch.autograd.set_detect_anomaly(True), "anomaly detection"),
    (lambda: torch._C._set_multithreading_enabled(False), "threads of autograd"),
    (lambda: torch.set_num_threads(torch.get_num_threads() % 2 + 1), "number of threads"),
    (lambda: module_hooks.register_module_forward_hook(lambda *_: None), "hooks on all modules"),
]


def leaving(leave: Callable[[], object]) -> Implementation:
    """Runs regions plainly; leaves something changed after each."""

    def run(function: Any, x: torch.Tensor) -> Any:
        try:
            return function(x)
        finally:
            leave()

    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=run)


@pytest.mark.parametrize(("leave", "name"), LEFT)
def test_what_a_step_leaves_changed_is_named_with_the_implementation(leave: Callable[[], object], name: str) -> None:
    before = process_state(Stacks.now())
    report = check(built(), impl=[leaving(leave), "nested"], steps=1)
    assert [one.verdict for one in report.results] == ["diverges", "agrees"]
    comparison = report.results[0].comparison
    assert comparison is not None
    assert comparison.process_state == (name,)
    assert f"own diverges\n  the process is left in another state after the step: {name}" in str(report)
    assert process_state(Stacks.now()) == before


def test_grad_mode_is_part_of_the_state() -> None:
    before = process_state(Stacks.now())
    with torch.no_grad():
        assert {name for name, value in process_state(Stacks.now()).items() if before[name] != value} == {"grad mode"}


def test_hooks_that_plain_leaves_too_are_no_divergence() -> None:
    def build() -> Any:
        model, x = built()()
        model.last.register_forward_hook(lambda *_: leave_hooks())
        return model, x

    assert check(build, impl="torch-nonreentrant").agrees


def test_hooks_and_modes_that_were_there_before_stay() -> None:
    with saved_tensors_hooks(same, same), BaseTorchFunctionMode(), BaseTorchDispatchMode():
        before = Stacks.now()
        with preserved():
            saved_tensors_hooks(lambda one: one, lambda one: one).__enter__()
            BaseTorchFunctionMode().__enter__()
            torch.set_default_device("meta")
            assert [name for name, left in before.left().items() if left not in ("", "None")] == [
                "hooks for saved tensors",
                "function modes",
            ]
        assert Stacks.now() == before
    assert torch.get_default_device() == torch.device("cpu")
