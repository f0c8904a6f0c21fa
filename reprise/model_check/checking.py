"""The check of a model: plain twice, then each implementation beside it."""

from __future__ import annotations

import gc
import statistics
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import impls
from impls import Implementation
from reprise.model_check import errors
from reprise.model_check.budgets.choice import OverBudget, Planner, parse_budget
from reprise.model_check.budgets.integer_program import require_scipy
from reprise.model_check.builder import ACCEPTED
from reprise.model_check.comparison import Plain, compare_runs, compare_tensors
from reprise.model_check.explain import Wrong, explain_divergence, explain_spread
from reprise.model_check.metering import Observations, measure
from reprise.model_check.remedies import warned_of
from reprise.model_check.report import Report, Result
from reprise.model_check.run import NoRegions, Run, Setting, run

DEFAULT = ("torch-nonreentrant", "nested")


class PlainFails(ValueError):
    """The model fails without checkpointing, so there is nothing to compare with."""


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
    Raises TypeError and ValueError for what is not accepted, for a model that fails without checkpointing, and for a budget
    that no implementation keeps. Not checked: hangs, double backward, several processes, what ``torch.compile`` has compiled.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be 1 or more")
    chosen = [impl] if isinstance(impl, str | Implementation) else list(impl)
    found = [one if isinstance(one, Implementation) else impls.find(one) for one in chosen]
    if not found:
        raise ValueError("impl is empty; name one implementation at least")
    if others := [one.name for one in found if one.kind != "checkpoint"]:
        raise ValueError(f"impl is {others[0]!r}, which is no checkpoint: name one of kind checkpoint, such as nested")
    if budget is not None:
        parse_budget(budget, 1)
        require_scipy()
    globs = (regions,) if isinstance(regions, str) else tuple(regions)
    setting = Setting(_anew(build), globs, _device(device), steps=steps)
    tell = progress or (lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run would repeat the model's
        return _Checked(setting, tell, explain, budget).report(found)


def assert_equals_plain(
    build: Callable[[], Any],
    *,
    impl: str | Implementation | Sequence[str | Implementation] = DEFAULT,
    regions: str | Sequence[str] = (),
    device: str | torch.device | None = None,
    steps: int = 2,
) -> None:
    """Raise AssertionError with the report unless every implementation agrees with plain; arguments as in ``check``."""
    report = check(build, impl=impl, regions=regions, device=device, steps=steps)
    if not report.agrees:
        raise AssertionError(f"checkpointing changes the step\n{report}")


def _device(device: str | torch.device | None) -> torch.device | None:
    try:
        found = None if device is None else torch.device(device)
        if found is not None:
            torch.empty(0, device=found)
    except Exception as error:
        raise ValueError(f"device is {device!r}, and torch cannot use it here: {str(error).splitlines()[0]}") from error
    return found


def _anew(build: Callable[[], Any]) -> Callable[[], Any]:
    """``build``, which is refused when it returns the model of its last call again."""
    last: list[weakref.ref[Any]] = []

    def built() -> Any:
        made = build()
        model = made[0] if isinstance(made, tuple) and made else made
        if isinstance(model, nn.Module):
            if last and last.pop()() is model:
                raise TypeError(f"build() returned the same model again; {ACCEPTED}")
            last.append(weakref.ref(model))
        return made

    return built


@dataclass(frozen=True)
class _Checked:
    setting: Setting
    tell: Callable[[str], object]
    explain: bool
    budget: int | str | None
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of steps, by implementation

    def report(self, found: list[Implementation]) -> Report:
        self.tell("plain, twice")
        plain = Plain(*self._plain_runs())
        self.seconds["plain"] = [*plain.run.seconds, *plain.other.seconds]
        results = [self._result(one, plain) for one in found]
        ratios = self._times(found)
        self.tell("plain, metered")
        costs, metered = measure(self.setting, None, Observations())
        explained = explain_spread(self.setting) if self.explain and not plain.spread.agrees else ()
        initial = compare_tensors(plain.run.initial, plain.other.initial)
        results = [
            replace(result, time_ratio=ratio, **self._metered(one, metered), explanation=self._explained(one, result, plain))
            for one, result, ratio in zip(found, results, ratios, strict=True)
        ]
        planner = Planner.measured(self.setting, plain, self.tell) if self.budget is not None else None
        if planner:
            results = self._within_budget(planner, found, results)
        return Report(
            regions=tuple(one.name for one in plain.run.regions),
            spread=plain.spread,
            initial_values_differ=tuple(one.name for one in initial.differing),
            spread_explanation=explained,
            plain=costs,
            results=tuple(results),
            region_costs=planner.region_costs() if planner else (),
        )

    def _plain_runs(self) -> tuple[Run, Run]:
        try:
            runs = run(self.setting, None), run(self.setting, None)
        except (NoRegions, TypeError) as error:
            if isinstance(error, NoRegions) or errors.raised_in(error, Path(__file__).parent):
                raise
            raise PlainFails(f"the model fails without checkpointing: {errors.told(error)}") from error
        except Exception as error:
            if isinstance(error, ValueError) and errors.raised_in(error, Path(__file__).parent):
                raise
            raise PlainFails(f"the model fails without checkpointing: {errors.told(error)}") from error
        return runs

    def _result(self, one: Implementation, plain: Plain) -> Result:
        self.tell(one.name)
        try:
            seen = run(self.setting, one.checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
            told, verdict = errors.told(error), errors.verdict(error, one)
            error.__traceback__ = None  # its frames hold the model
            result = Result(one.name, verdict, error=told)
        else:
            compared = compare_runs(plain.run, seen, plain.spread_if_any)
            self.seconds[one.name] = list(seen.seconds)
            result = Result(
                one.name,
                "agrees" if compared.agrees else "diverges",
                comparison=compared,
                calls=seen.calls,
                recomputations=seen.recomputations,
            )
        gc.collect()
        return result

    def _metered(self, one: Implementation, plain: Run) -> dict[str, Any]:
        self.tell(f"{one.name}, metered")
        seen, costs = Observations(), None
        with suppress(Exception):  # told by the verdict, unless the meter is not borne: then there are no figures
            costs, _ = measure(self.setting, one.checkpoint, seen)
        return {"costs": costs, "warnings": warned_of(seen, plain)}

    def _explained(self, one: Implementation, result: Result, plain: Plain) -> tuple[str, ...]:
        if not self.explain or result.verdict == "agrees":
            return ()
        self.tell(f"{one.name}, explained")
        return explain_divergence(self.setting, one.checkpoint, Wrong(plain.run, plain.spread_if_any))

    def _within_budget(self, planner: Planner, found: list[Implementation], results: list[Result]) -> list[Result]:
        assert self.budget is not None
        refused: list[OverBudget] = []
        for place, (one, result) in enumerate(zip(found, results, strict=True)):
            if result.verdict in ("agrees", "diverges"):
                try:
                    results[place] = replace(result, choice=planner.choose(one, self.budget))
                except OverBudget as error:
                    refused.append(error)
                    results[place] = replace(result, over_budget=str(error))
        if refused and not any(one.choice for one in results):
            raise refused[0]
        return results

    def _times(self, found: list[Implementation]) -> list[float | None]:
        """Median seconds of a step beside plain's: of the steps that were compared, and of one more of each in turn."""
        runnable = [one for one in found if one.name in self.seconds]
        self.tell("timing")
        for name, checkpoint in [("plain", None), *((one.name, one.checkpoint) for one in runnable)] if runnable else []:
            with suppress(Exception):  # was run before without one
                self.seconds[name] += run(self.setting, checkpoint, steps=1).seconds
        medians = {name: statistics.median(times) for name, times in self.seconds.items()}
        return [medians[one.name] / medians["plain"] if one.name in medians else None for one in found]
