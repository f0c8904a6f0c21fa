"""Which errors are refusals, by what they name and by who raises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.judging.judge import Case, Outcome, judge
from conformance.judging.law import all_laws
from conformance.judging.refusals import (
    ALWAYS,
    CAPABILITIES,
    HOOKS,
    INFERENCE,
    TRANSFORMS,
    TYPES,
    expected_names,
    names_one,
)
from conformance.judging.verdicts import Verdict
from conformance.programs.program import Named
from impls import Implementation, get, implementation
from impls.nested import checkpoint as nested
from tests.support.numbered_programs import equal

NESTED = get("nested")


def _two(checkpoint: Any, note: Any, device: str) -> None:
    p, q = torch.ones(2, 3, requires_grad=True, device=device), torch.ones(3, 4, requires_grad=True, device=device)
    note("leaves", (p, q))
    y = checkpoint(lambda a, b: (a @ b).sin(), p, q)
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [p.grad, q.grad])


def _outcome(checkpoint: Callable[..., Any], names: frozenset[str] = ALWAYS["checkpoint"]) -> Outcome:
    case = Case(Named(_two), Implementation("fake", checkpoint, capabilities=NESTED.capabilities), "cpu", names=names)
    return judge(equal, case, recomputes=False, gradients=True)


def _losing_an_argument(function: Any, p: Any, q: Any) -> Any:
    return nested(lambda p, q: function(p, p), p, q)


def _losing_an_argument_in_backward(function: Any, p: Any, q: Any) -> Any:
    runs: list[None] = []

    def again(p: Any, q: Any) -> Any:
        runs.append(None)
        return function(p, q if len(runs) == 1 else q[:2])

    return nested(again, p, q, determinism_check="none")


def _losing_it_altogether(function: Any, p: Any, q: Any) -> Any:
    return function(p)


def _passing_none(function: Any, p: Any, q: Any) -> Any:
    return function(p, None)


@pytest.mark.parametrize("faulty", [_losing_an_argument, _losing_an_argument_in_backward, _losing_it_altogether, _passing_none])
@pytest.mark.parametrize("names", [ALWAYS["checkpoint"], TYPES])
def test_an_implementation_that_loses_an_argument_crashes(faulty: Callable[..., Any], names: frozenset[str]) -> None:
    """Operators and functions then raise errors of types that refuse, and some speak of arguments."""
    found = _outcome(faulty, names)
    assert found.verdict is Verdict.CRASHES, found.detail


def _raising(message: str) -> Callable[..., Any]:
    def checkpoint(*_: Any, **__: Any) -> None:
        raise RuntimeError(message)

    return checkpoint


def test_a_refusal_that_names_nothing_crashes() -> None:
    assert _outcome(_raising("something here is not as it should be")).verdict is Verdict.CRASHES
    assert _outcome(_raising("The size of tensor a (3) must match the size of tensor b (2)")).verdict is Verdict.CRASHES
    assert _outcome(_raising("recomputation is not supported here")).verdict is Verdict.REFUSES


def test_an_error_of_the_implementation_inside_of_an_operator_is_its_own() -> None:
    """A hook that refuses is called while an operator of the function runs."""

    def refuse(tensor: torch.Tensor) -> Any:
        raise RuntimeError("a tensor cannot be saved here")

    def checkpoint(function: Any, *args: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(refuse, lambda tensor: tensor):
            return function(*args)

    assert _outcome(checkpoint).verdict is Verdict.REFUSES


def test_plains_own_error_agrees_and_another_of_its_type_does_not() -> None:
    def twice(checkpoint: Any, note: Any, device: str) -> None:
        x = torch.ones(2, requires_grad=True, device=device)
        note("leaves", (x,))

        def f(h: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("program")

        checkpoint(f, x)

    def outcome(checkpoint: Callable[..., Any]) -> Outcome:
        case = Case(Named(twice), Implementation("fake", checkpoint), "cpu")
        return judge(equal, case, recomputes=False, gradients=False)

    assert outcome(nested).verdict is Verdict.AGREES
    assert outcome(_raising("shapes cannot be multiplied")).verdict is Verdict.CRASHES
    assert outcome(_raising("recomputation is not supported")).verdict is Verdict.AGREES


@pytest.mark.parametrize(
    ("message", "names", "named"),
    [
        ("Unexpected keyword arguments: a2", CAPABILITIES["keyword-arguments"], True),
        ("f() missing 1 required keyword-only argument: 'k'", CAPABILITIES["keyword-arguments"], False),
        ("f() missing 1 required positional argument: 'b'", CAPABILITIES["keyword-arguments"], False),
        ("f() got an unexpected keyword argument 'early_stop'", {"early_stop"}, True),
        ("Trying to backward through the graph a second time", ALWAYS["checkpoint"], True),
        ("Function MulBackward0 returned an invalid gradient at index 0", ALWAYS["checkpoint"], False),
        ("Checkpointing is not compatible with .grad(), please use .backward()", CAPABILITIES["subset-requests"], True),
        ("one of the variables has been modified by an inplace operation", ALWAYS["graph"], True),
        ("Inference tensors cannot be saved", INFERENCE, True),
        ("cannot register a hook on a tensor that doesn't require gradient", HOOKS, True),
        ("torch.func.{grad, vjp} don't yet support saved tensor hooks", TRANSFORMS, True),
        ("nested torch_remat.checkpoint regions are not supported", CAPABILITIES["nesting"], True),
        ("anything at all", frozenset(), False),
    ],
)
def test_a_name_is_a_word_of_its_own(message: str, names: frozenset[str], named: bool) -> None:
    assert names_one(message, names) is named


def test_every_capability_has_names_or_can_not_be_refused() -> None:
    assert CAPABILITIES.keys() == implementation.CAPABILITIES.keys() | implementation.GRAPH_CAPABILITIES.keys()
    unrefused = {name for name, names in CAPABILITIES.items() if not names}
    assert unrefused == {"exact-sums", "hidden-saves", "recomputes"}


def test_a_refusal_may_name_what_the_law_needs_its_options_and_what_it_is_about() -> None:
    names = expected_names("offload", ["min-bytes"], {"early_stop": False}, ["sparse"])
    assert names == ALWAYS["offload"] | {"min_bytes", "early_stop", "sparse"}
    law = all_laws()["context_managers_without_finally"]
    assert law.names == ALWAYS["checkpoint"] | {"early_stop"}
