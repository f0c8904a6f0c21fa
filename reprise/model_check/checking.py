"""The check of a model: plain twice, then each implementation beside it."""

from __future__ import annotations

import functools
import gc
import inspect
import platform
import statistics
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import impls
from impls import Implementation
from reprise.model_check import errors
from reprise.model_check.budgets.choice import OverBudget, Planner, parse_budget
from reprise.model_check.budgets.integer_program import require_scipy
from reprise.model_check.builder import ACCEPTED
from reprise.model_check.comparison import proves_something
from reprise.model_check.errors import BAD_INPUT, BUILD_ERRORS, InvalidArgument, MeteringFails, NotAccepted, PlainFails
from reprise.model_check.explanations.explain import (
    explain_divergence,
    explain_spread,
    explain_undecided,
    explain_unlike_forward,
)
from reprise.model_check.explanations.explanation import NOTHING, Explanation
from reprise.model_check.metering import Observations, measure
from reprise.model_check.plain_runs import UNDECIDED, PlainRuns
from reprise.model_check.regions import REENTRANT, Passed
from reprise.model_check.remedies import warned_of
from reprise.model_check.report import Report, Result
from reprise.model_check.run import Run, Setting, run
from reprise.model_check.text.report_text import NOT_TOLD_APART
from reprise.model_check.user_lines import find_lines

DEFAULT = ("torch-nonreentrant", "nested")
_ONE_AT_A_TIME = threading.RLock()  # of all threads: a check redirects PyTorch's checkpoint and seeds random numbers
_PLAIN = ""  # the key for plain's seconds: no implementation has this name, whereas one may be called plain


def check(
    build: Callable[[], Any],
    *,
    impl: str | Implementation | Sequence[str | Implementation] = DEFAULT,
    regions: str | Sequence[str] = (),
    device: str | torch.device | None = None,
    steps: int = 2,
    explain: bool = False,
    budget: int | str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Report:
    """Compare steps of a model whose regions are checkpointed with plain steps; see docs/checking-your-model.md.

    ``build()`` returns ``(model, loss)`` with ``loss(model)`` a scalar, or ``(model, example_inputs)``; it is called anew
    for each run. ``regions`` are globs of module names, besides the model's own calls of PyTorch's checkpoint. For a
    ``budget`` in bytes, such as 500000 and "1.5GiB", or as a share of plain's peak, "60%", regions are chosen (with scipy).
    By default torch-reentrant is checked, too, if a call of the model asks for ``use_reentrant=True``.
    Raises TypeError and ValueError for what is not accepted and for a model that fails without checkpointing.
    A check in another thread waits until this one ends.
    Not checked: hangs, double backward, several processes, what ``torch.compile`` has compiled.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InvalidArgument(f"steps is {steps!r}; it must be a whole number, 1 or more")
    if not callable(build):
        raise InvalidArgument(f"build is {build!r}, which cannot be called; pass a function. Of what it returns, {ACCEPTED}")
    chosen = [impl] if isinstance(impl, str | Implementation) or not isinstance(impl, Iterable) else list(impl)
    with _arguments(), warnings.catch_warnings():  # scipy's modules set filters as they are imported
        found = [one if isinstance(one, Implementation) else _found(one) for one in chosen]
        if budget is not None:
            parse_budget(budget, 1)
            require_scipy()
    if not found:
        raise InvalidArgument("impl is empty; name at least one implementation")
    if others := [one.name for one in found if one.kind != "checkpoint"]:
        raise InvalidArgument(f"impl is {others[0]!r}, which is no checkpoint; name one of kind checkpoint, such as nested")
    names = [one.name for one in found]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgument(f"impl has {double!r} {names.count(double)} times; give each implementation a name of its own")
    setting = Setting(_anew(build), _globs(regions), _device(device), steps=steps)
    tell = progress or (lambda _: None)
    # Filters are kept twice, as one is left if an interrupt comes as the other ends.
    with _ONE_AT_A_TIME, warnings.catch_warnings(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run would repeat the model's warnings
        return _Check(setting, tell, explain, budget, adds_reentrant=impl is DEFAULT).report(found)


def assert_equals_plain(
    build: Callable[[], Any],
    *,
    impl: str | Implementation | Sequence[str | Implementation] = DEFAULT,
    regions: str | Sequence[str] = (),
    device: str | torch.device | None = None,
    steps: int = 2,
    explain: bool = False,
) -> None:
    """Raise AssertionError with the report if an implementation diverges, refuses or crashes; arguments as in ``check``.

    If it cannot be told whether it agrees, this raises too, unless plain's own runs differ: let ``build`` be deterministic.
    """
    __tracebackhide__ = True  # pytest shows the report, and none of this function
    report = check(build, impl=impl, regions=regions, device=device, steps=steps, explain=explain)
    if not report.passes:
        raise AssertionError(f"checkpointing changes the step\n{report}")


def _globs(regions: Any) -> tuple[str, ...]:
    """The globs. Raises InvalidArgument for what matches no name of any model; all other text is a glob."""
    globs = (regions,) if isinstance(regions, str) or not isinstance(regions, Iterable) else tuple(regions)
    if wrong := [one for one in globs if not isinstance(one, str) or not one]:
        raise InvalidArgument(f"regions: {wrong[0]!r} is no glob of module names; accepted is text such as 'layers.*'")
    return globs


def _found(name: Any) -> Implementation:
    """The implementation of that name. Raises ValueError with what may have been meant."""
    if not isinstance(name, str):
        accepted = "names, such as 'nested' and 'pkg.mod:checkpoint', and objects of reprise.Implementation"
        raise ValueError(f"impl is {name!r}; accepted are {accepted}")
    try:
        return impls.find(name)
    except ValueError as error:
        from conformance.rows.option_values import implementation_hint  # the suite is not needed for a check

        raise ValueError(f"{error}{implementation_hint(name)}") from error


def _require_accepting(found: Sequence[Implementation], plain: Run) -> None:
    """Raise InvalidArgument if a callable that declares nothing cannot be called as the model's regions are, by its signature.

    One that declares what it is may refuse what a region is passed, which is a verdict.
    """
    for one, passed in ((one, passed) for one in found if not one.declared for passed in plain.passed):
        if told := _unaccepted(one.checkpoint, passed):
            region = f"region {passed.region.name} ({passed.region.line})"
            raise InvalidArgument(
                f"impl is {one.name!r}, which cannot be called for {region} with {passed}: {told}; accepted is a callable, "
                "called as checkpoint(function, *args, **kwargs) with what the region is passed, and with the options of "
                "PyTorch's checkpoint that the model gives"
            )


def _unaccepted(checkpoint: Callable[..., Any], passed: Passed) -> str:
    """Why a call of a checkpoint would fail by its signature alone; "" if it would not, or if it has none to look at."""
    try:
        signature = inspect.signature(checkpoint, follow_wrapped=False)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(checkpoint, *[None] * passed.arguments, **dict.fromkeys(passed.keywords))
    except TypeError as error:
        return str(error)
    return ""


@contextmanager
def _arguments() -> Iterator[None]:
    """A ValueError of what looks at an argument is an InvalidArgument."""
    try:
        yield
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


def _device(device: str | torch.device | None) -> torch.device | None:
    try:
        found = None if device is None else torch.device(device)
        if found is not None:
            torch.empty(0, device=found)
    except Exception as error:
        raise InvalidArgument(f"device is {device!r}, and torch cannot use it here: {str(error).splitlines()[0]}") from error
    return found


def _anew(build: Callable[[], Any]) -> Callable[[], Any]:
    """``build``, which raises NotAccepted if it returns the model of its last call again."""
    last: list[weakref.ref[Any]] = []

    @functools.wraps(build)
    def built() -> Any:
        made = build()
        model = made[0] if isinstance(made, tuple) and made else made
        if isinstance(model, nn.Module):
            if last and last.pop()() is model:
                raise NotAccepted(f"build() returned the same model again; {ACCEPTED}")
            last.append(weakref.ref(model))
        return made

    return built


@dataclass(frozen=True)
class _Check:
    """One check: its setting, and what was requested besides verdicts."""

    setting: Setting
    tell: Callable[[str], object]
    explain: bool
    budget: int | str | None
    adds_reentrant: bool = False
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of steps, by implementation

    def report(self, found: list[Implementation]) -> Report:
        self.tell("build(), then plain, twice")
        plain = PlainRuns.begun(self.setting, self.tell)
        if not plain.first.gradients:
            raise NotAccepted(
                "no parameter has a gradient after the plain step's backward, so there is nothing to compare; let build() "
                "return a loss that depends on parameters, and no hook that takes gradients away, as one that updates them may"
            )
        if not proves_something(plain.first.gradients):
            raise NotAccepted(
                "every gradient of the plain step is zero or not finite, so equal gradients would prove nothing; let build() "
                "return a loss that has gradients, and no model whose last layer is zero"
            )
        _require_accepting(found, plain.first)
        self.seconds[_PLAIN] = plain.seconds
        if self.adds_reentrant and plain.first.reentrant_calls:
            found = [*found, impls.get(REENTRANT)]
        results = [self._result(one, plain) for one in found]
        times = self._times(found)
        results = [
            replace(result, **timed, **self._metered(one, result, plain), **self._explained(one, result, plain))
            for one, result, timed in zip(found, results, times, strict=True)
        ]
        planner = Planner.measured(self.setting, plain, self.tell) if self.budget is not None else None
        if planner:
            results = self._within_budget(planner, plain, found, results)
        return Report(
            regions=tuple(one.name for one in plain.first.regions),
            plain_runs=len(plain),
            spread=plain.spread,
            initial_values_differ=plain.initial_values_differ,
            spread_explanation=self._spread_explained(plain),
            plain=plain.costs,
            plain_seconds=min(self.seconds[_PLAIN]),
            results=tuple(results),
            region_costs=planner.region_costs() if planner else (),
            chosen_by=planner.unit if planner else "",
            reentrant_calls=plain.first.reentrant_calls,
            uncalled=plain.first.uncalled,
            other_leaves=plain.other_leaves,
            not_measured=plain.not_measured,
            versions={"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            devices=plain.first.devices,
            steps=self.setting.steps,
        )

    def _result(self, one: Implementation, plain: PlainRuns) -> Result:
        self.tell(one.name)
        try:
            seen = run(self.setting, one.checkpoint)
            judged = plain.judge(one.checkpoint, seen)
        except BAD_INPUT:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
            raiser = errors.raised_by(error, one, plain.first.sources)
            verdict, where = errors.verdict(error, raiser), errors.place(error)
            told, kind = errors.told(error), errors.type_name(error)
            result = Result(one.name, verdict, error=told, error_type=kind, raised_by=raiser, where=where)
            error.__traceback__ = error.__context__ = None  # their frames hold the model, and may be in a cycle
            gc.collect()
        else:
            self.seconds[one.name] = [*seen.seconds, *judged.seconds]
            unlike = explain_unlike_forward(self.setting, one.checkpoint, plain, judged.verdict)
            result = Result(
                one.name,
                "diverges" if unlike else judged.verdict,
                undecided="" if unlike else judged.undecided,
                unlike_forward=unlike,
                sometimes=judged.sometimes,
                comparison=judged.comparison,
                first_run=judged.first_run,
                calls=seen.calls,
                recomputations=seen.recomputations,
            )
        return result

    def _metered(self, one: Implementation, result: Result, plain: PlainRuns) -> dict[str, Any]:
        """What a metered step adds to a result: costs, or why there are none, and warnings."""
        self.tell(f"{one.name}, metered")
        seen, costs, reason = Observations(), None, ""
        try:
            costs, _ = measure(self.setting, one.checkpoint, seen)
        except BUILD_ERRORS:
            raise
        except MeteringFails as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - reported by the verdict, or here if it fails only under the meter
            reason = "" if result.error else f"the step fails while it is measured{errors.place(error)}: {errors.told(error)}"
            error.__traceback__ = None
        if result.verdict == "diverges":  # the operator in which a recomputation was ended may have been about to read them
            seen.changed_outside |= seen.changed_unread
        find_lines(self.setting, one.checkpoint, seen)
        return {"costs": costs, "not_measured": reason, "warnings": warned_of(seen, plain.first)}

    def _spread_explained(self, plain: PlainRuns) -> Explanation:
        if plain.spread.agrees:
            return NOTHING
        self.tell("plain, recorded, since its runs differ")
        try:
            return explain_spread(self.setting)
        except MeteringFails as error:
            return Explanation((f"where they part cannot be told: {error}",))

    def _explained(self, one: Implementation, result: Result, plain: PlainRuns) -> dict[str, Any]:
        """What an explanation adds to a result. It runs the step again, which may show what the steps before did not."""
        if not self.explain or result.verdict == "agrees" or result.unlike_forward:
            return {}
        self.tell(f"{one.name}, explained")
        try:
            if result.verdict != UNDECIDED:
                differs, kind, is_certain = result.comparison, result.error_type, not result.sometimes
                explained = explain_divergence(self.setting, one.checkpoint, plain, differs, kind, is_certain=is_certain)
                return {"explanation": explained}
            unlike, explanation = explain_undecided(self.setting, one.checkpoint, plain)
        except MeteringFails as error:
            return {"explanation": Explanation((f"where it parts cannot be told: {error}",))}
        return {"verdict": "diverges", "undecided": "", "unlike_forward": unlike} if unlike else {"explanation": explanation}

    def _within_budget(
        self, planner: Planner, plain: PlainRuns, found: list[Implementation], results: list[Result]
    ) -> list[Result]:
        assert self.budget is not None
        for place, (one, result) in enumerate(zip(found, results, strict=True)):
            if result.comparison is not None:
                try:
                    results[place] = replace(result, choice=planner.choose(one, self.budget))
                except OverBudget as error:
                    results[place] = replace(result, over_budget=str(error))
                except (*BAD_INPUT, MeteringFails):
                    raise
                except Exception as error:  # noqa: BLE001 - with some regions checkpointed; with all it did not raise
                    raiser = errors.raised_by(error, one, plain.first.sources)
                    told = f"{errors.verdict(error, raiser)}{errors.place(error)}: {errors.told(error)}"
                    told += f"\n{NOT_TOLD_APART}" if raiser == "cannot be told" else ""
                    error.__traceback__ = None
                    results[place] = replace(result, budget_error=told)
        return results

    def _times(self, found: list[Implementation]) -> list[dict[str, Any]]:
        """Seconds of a step relative to plain's: of the steps that were compared, and of one more plain step.

        The very first step warms up, so it does not count.
        """
        if any(one.name in self.seconds for one in found):
            self.tell("plain, once more")
            with suppress(PlainFails):  # it did not fail before, and this run gives no verdict
                self.seconds[_PLAIN] += run(self.setting, None, steps=1).seconds
        plain = self.seconds[_PLAIN][1:] or self.seconds[_PLAIN]
        return [_ratio(self.seconds[one.name], plain) if one.name in self.seconds else {} for one in found]


def _ratio(seconds: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    """The ratio of medians; and its spread, between the lower quartile beside plain's upper one and the reverse."""
    ratio, spread = statistics.median(seconds) / statistics.median(plain), None
    if min(len(seconds), len(plain)) > 1:
        (low, _, high), (plain_low, _, plain_high) = (statistics.quantiles(one, method="inclusive") for one in (seconds, plain))
        spread = low / plain_high, high / plain_low
    return {"time_ratio": ratio, "time_spread": spread}
