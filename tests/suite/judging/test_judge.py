"""One case: what an implementation did is observed, classified and compared; a fault of the suite is no verdict."""

from __future__ import annotations

import importlib
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.judging import judge as judging
from conformance.judging.judge import Case, Outcome, execute, judge, limited
from conformance.judging.verdicts import Diverges, Hangs, Judged, Measured, Refuses, Verdict
from conformance.meters.interruptions import Timeout
from conformance.meters.meter import Meter
from conformance.programs.program import Named
from impls import Implementation
from impls.nested import checkpoint as nested
from impls.plain import checkpoint as plain
from tests.support.single_cases import TWICE, Checkpoint, case, equal, flat, outcome, raises, raising


def test_a_right_implementation_agrees_and_proves_something() -> None:
    assert outcome(nested) == Outcome(TWICE, Verdict.AGREES)


def test_what_never_recomputes_proves_nothing() -> None:
    assert outcome(plain).vacuous == "nothing was recomputed"


def test_zero_gradients_prove_nothing() -> None:
    assert outcome(nested, Named(flat)).vacuous == "all gradients are zero"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (RuntimeError("recomputation is not supported; do that"), Verdict.REFUSES),
        (NotImplementedError("recomputation is not supported; do that"), Verdict.REFUSES),
        (RuntimeError("no"), Verdict.CRASHES),
        (KeyError("recomputation is not supported; do that"), Verdict.CRASHES),
        (AssertionError(), Verdict.CRASHES),
    ],
    ids=repr,
)
def test_an_error_where_plain_has_none_is_classified(error: Exception, verdict: Verdict) -> None:
    assert outcome(raising(error)).verdict is verdict


def test_a_wrong_value_diverges_and_the_detail_shows_both() -> None:
    found = outcome(lambda function, x: function(x) * 2)
    assert found.verdict is Verdict.DIVERGES
    assert found.detail.startswith("forward: plain [2.319")
    assert "here [4.639" in found.detail


def test_a_refusal_after_a_wrong_gradient_diverges() -> None:
    found = outcome(raising(RuntimeError("recomputation is not supported; do that"), gradient=7.0))
    assert found.verdict is Verdict.DIVERGES
    assert "left a gradient that is wrong" in found.detail


def test_a_refusal_after_the_next_right_gradient_refuses() -> None:
    right = float(execute(TWICE, plain, "cpu").notes["gradients 0"][1][0].values[0])
    assert outcome(raising(RuntimeError("recomputation is not supported; do that"), gradient=right)).verdict is Verdict.REFUSES


def _trying(checkpoint: Any, note: Any, device: str) -> None:
    p, x = (torch.ones(2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, x))
    y = checkpoint(lambda a, b: a.sin(), x, p) + p
    y.sum().backward()
    note("gradients 0", [p.grad, x.grad])
    try:
        y.sum().backward()
    except RuntimeError:
        note("attempt 1", "raised")
    p.grad = x.grad = None


@pytest.mark.parametrize(
    ("fails", "factor", "verdict"), [(2, 1, Verdict.CRASHES), (2, 5, Verdict.DIVERGES), (1, 2, Verdict.DIVERGES)]
)
def test_an_error_may_leave_what_plain_leaves_where_it_fails(fails: int, factor: int, verdict: Verdict) -> None:
    def checkpoint(function: Any, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        y = function(x, p)
        calls: list[None] = []

        def fail(grad: torch.Tensor) -> None:
            calls.append(None)
            if len(calls) == fails and p.grad is not None:
                p.grad *= factor
                raise KeyError("state")

        y.register_hook(fail)
        return y

    assert outcome(checkpoint, Named(_trying)).verdict is verdict


def test_a_refusal_that_halves_an_earlier_gradient_diverges() -> None:
    def checkpoint(function: Any, x: torch.Tensor) -> torch.Tensor:
        y = function(x)
        calls: list[None] = []

        def meddle(grad: torch.Tensor) -> None:
            calls.append(None)
            if len(calls) == 2:
                assert x.grad is not None
                x.grad /= 2
                raise RuntimeError("a second backward is not supported")

        y.register_hook(meddle)
        return y

    assert outcome(checkpoint).verdict is Verdict.DIVERGES


def _noting_forward(checkpoint: Any, note: Any, device: str) -> None:
    p = torch.ones(2, device=device, requires_grad=True)
    y = checkpoint(torch.sin, p)
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [p.grad])


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.REFUSES), (2.0, Verdict.DIVERGES)])
def test_a_refusal_after_a_wrong_forward_diverges(factor: float, verdict: Verdict) -> None:
    def checkpoint(function: Any, x: torch.Tensor) -> torch.Tensor:
        def refuse(_: torch.Tensor) -> None:
            raise RuntimeError("recomputation is not supported")

        y = function(x) * factor
        y.register_hook(refuse)
        return y

    assert outcome(checkpoint, Named(_noting_forward)).verdict is verdict


def test_where_plain_raises_a_value_diverges() -> None:
    found = outcome(lambda function, x: x, Named(raises, (("kind", "ValueError"),)))
    assert (found.verdict, found.detail) == (Verdict.DIVERGES, "plain raises ValueError, here a value comes back")


@pytest.mark.parametrize(("error", "measured"), [(KeyError("x"), Measured("error")), (SystemExit(5), None)])
def test_the_script_of_a_crash_in_place_of_plains_error_compares_their_types(error: BaseException, measured: Any) -> None:
    found = outcome(raising(error), Named(raises, (("kind", "ValueError"),)))
    assert (found.verdict, found.measured) == (Verdict.CRASHES, measured)


def test_where_plain_raises_an_error_agrees_and_proves_something_only_if_that_is_the_law() -> None:
    program = Named(raises, (("kind", "KeyboardInterrupt"),))
    proof, nothing = (judge(equal, case(nested, program), recomputes=False, gradients=g) for g in (False, True))
    assert proof == Outcome(program, Verdict.AGREES)
    assert nothing == Outcome(program, Verdict.AGREES, vacuous="plain raises KeyboardInterrupt")


def _raising_later(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, requires_grad=True, device=device)
    note("leaves", (x,))
    y = checkpoint(torch.sin, x).exp()
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [x.grad])
    y.sum().backward()


LATER = Named(_raising_later)


def test_an_error_that_comes_before_plains_is_not_agreement() -> None:
    assert outcome(lambda function, x: function(x), LATER).vacuous == "plain raises RuntimeError"
    assert outcome(raising(RuntimeError("recomputation is not supported; do that")), LATER).verdict is Verdict.REFUSES
    assert outcome(raising(RuntimeError("no")), LATER).verdict is Verdict.CRASHES


def _costing(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, requires_grad=True, device=device)
    note("leaves", (x,))
    y = checkpoint(torch.sin, x)
    note("cost in nodes", y.grad_fn.name())
    note("forward", y)
    y.sum().backward()


@pytest.mark.parametrize(("factor", "verdict"), [(1, Verdict.AGREES), (2, Verdict.DIVERGES)])
def test_notes_of_costs_need_not_equal_plains_and_others_must(factor: int, verdict: Verdict) -> None:
    def check(of: Case) -> None:
        assert of.plain.notes["cost in nodes"] != of.seen.notes["cost in nodes"]
        of.equals_plain()

    multiplied = outcome(lambda function, x: function(x) * factor, Named(_costing), check=check)
    assert multiplied.verdict is verdict


def _noting_twice(checkpoint: Any, note: Any, device: str) -> None:
    for number in range(2):
        note("value", number)


def test_a_program_that_notes_a_label_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="notes 'value' more than once; give each note a label of its own"):
        outcome(plain, Named(_noting_twice))


def _noting_inside(checkpoint: Any, note: Any, device: str) -> None:
    def f() -> float:
        note("inside", checkpoint(float))
        return 0.0

    checkpoint(f)


@pytest.mark.parametrize(("first", "verdict"), [(0.0, Verdict.AGREES), (1.0, Verdict.DIVERGES)])
def test_a_function_that_runs_again_notes_the_same_each_time(first: float, verdict: Verdict) -> None:
    values = iter([first, 0.0])

    def checkpoint(function: Any) -> Any:
        if function.__name__ == "float":
            return next(values)
        function()
        return function()

    found = outcome(checkpoint, Named(_noting_inside))
    assert found.verdict is verdict
    assert found.detail in ("", "inside: plain 0.0, here 1.0, before it was noted again")


def test_the_users_own_interrupt_gets_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        outcome(raising(KeyboardInterrupt()))


def test_a_stop_signal_that_gets_out_is_a_crash() -> None:
    class Stop(BaseException):
        """An implementation's own."""

    assert outcome(raising(Stop("the value at index three is here"))).verdict is Verdict.CRASHES


def forever(function: Any, x: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(0.01)


def forever_in_backward(function: Any, x: torch.Tensor) -> torch.Tensor:
    y = function(x)
    y.register_hook(lambda grad: forever(function, grad))
    return y


@pytest.mark.parametrize("checkpoint", [forever, forever_in_backward])
def test_an_implementation_that_does_not_answer_hangs(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SECONDS_PER_CASE", 1)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(Hangs):
        case(checkpoint).equals_plain()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.alarm(0) == 0


def test_calls_without_end_are_a_hang_that_no_script_need_show() -> None:
    def checkpoint(function: Any, x: torch.Tensor) -> torch.Tensor:
        return [function(x) for _ in range(10_000)][-1]  # by itself it comes to an end

    with pytest.raises(Hangs, match="called more than") as found:
        case(checkpoint).equals_plain()
    assert found.value.measured is None


@pytest.mark.parametrize(("share", "slow"), [(1.0, True), (0.1, False)])
def test_what_gets_few_cases_has_more_time_for_each(share: float, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[int] = []
    monkeypatch.setattr(judging, "announce", seconds.append)
    Case(TWICE, Implementation("fake", nested, share=share), "cpu").equals_plain()
    assert max(seconds) == (judging.SECONDS_PER_CASE if slow else 10 * judging.SECONDS_PER_CASE)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("law"), KeyError("law"), AssertionError("law"), RuntimeError("a fault of the law")]
)
def test_a_fault_of_a_law_is_no_verdict(error: Exception) -> None:
    def check(_: Case) -> None:
        raise error

    with pytest.raises(type(error)):
        outcome(nested, check=check)


def test_a_fault_of_a_meter_is_no_verdict() -> None:
    class Faulty(Meter):
        def __enter__(self) -> Meter:
            raise OSError("a fault of the meter")

    with pytest.raises(OSError, match="a fault of the meter"):
        case(nested).run(Faulty())


def test_a_law_may_reach_any_verdict() -> None:
    def check(_: Case) -> None:
        raise Refuses("says the law")

    assert outcome(nested, check=check) == Outcome(TWICE, Verdict.REFUSES, "says the law")


def test_sums_in_another_order_diverge_only_if_exact_sums_are_claimed() -> None:
    def checkpoint(function: Any, x: torch.Tensor) -> torch.Tensor:
        return nested(function, x * (1 + torch.finfo(x.dtype).eps))

    case(checkpoint).equals_plain()
    with pytest.raises(Diverges):
        case(checkpoint, TWICE, "exact-sums").equals_plain()


def test_calls_of_regions_are_counted() -> None:
    seen = case(nested).run()
    assert seen.calls == {"f": 3}
    assert case(plain).run().calls == {"f": 1}


def test_options_reach_the_implementation() -> None:
    got: dict[str, Any] = {}

    def checkpoint(function: Any, *args: Any, **options: Any) -> Any:
        got.update(options)
        return function(*args)

    Case(TWICE, Implementation("fake", checkpoint), "cpu", {"early_stop": False}).run()
    assert got == {"early_stop": False}


def test_judged_is_what_ends_a_case() -> None:
    with pytest.raises(Judged):
        case(raising(RuntimeError("recomputation is not supported; do that"))).run()


def test_a_limit_lets_an_import_come_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the module stays half there, and every program after this one fails by it."""
    package = tmp_path / "slowly_made"
    package.mkdir()
    (package / "__init__.py").write_text("import slowly_made.inner\nimport time\ntime.sleep(1.5)\nwhole = 1\n")
    (package / "inner.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def use() -> None:
        importlib.import_module("slowly_made")
        while True:
            pass

    with pytest.raises(Timeout), limited(1):
        use()
    module = importlib.import_module("slowly_made")
    assert (module.whole, module.inner.__name__) == (1, "slowly_made.inner")
