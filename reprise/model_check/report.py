"""The report of a check: verdicts, figures and warnings, as records and as JSON; ``text`` has it as text."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reprise.model_check.budgets.choice import Choice, RegionCosts, Spread
from reprise.model_check.budgets.region_work import Unit
from reprise.model_check.comparison import Comparison
from reprise.model_check.errors import Raiser
from reprise.model_check.explanations.explanation import NOTHING, Explanation
from reprise.model_check.metering import Costs
from reprise.model_check.plain_runs import UNDECIDED
from reprise.model_check.text.report_text import text_of

Verdict = Literal["agrees", "refuses", "diverges", "crashes", "cannot be told"]  # "hangs" is not detected: nothing ends a run


@dataclass(frozen=True)
class Warned:
    """Something in the model that goes wrong under checkpointing: what, where, and what to do."""

    kind: str
    message: str
    remedy: str
    places: tuple[str, ...] = ()  # modules or regions


@dataclass(frozen=True)
class Result:
    """One implementation on the model; what could not be measured is None.

    ``error_type`` is the full name of the type of the ``error``, ``where`` has `` at file:line`` of the user's line that raised
    it, if that is known, and ``raised_by`` says who did.
    ``not_measured`` says why there are no ``costs`` although there is no ``error``.
    ``time_ratio`` is that of the median step to plain's; ``time_spread`` has those of the lower quartile to plain's upper one
    and of the upper one to plain's lower one, and is None if a single step was timed.
    ``undecided`` says why it cannot be told whether it agrees; ``sometimes``, how many of its runs differ, if it diverges in
    some alone. ``unlike_forward`` shows that its recomputations compute other values than forward, if it diverges for that
    alone, as plain's runs differ, too. ``first_run`` has all that differs in its first run;
    ``comparison`` what the verdict is about, which is less if it diverges and plain's runs differ, too.
    With a budget there is a ``choice``, or ``over_budget`` says why there is none, or ``budget_error`` has the error with the
    chosen regions; there is none of these if the implementation refuses or crashes with all regions.
    """

    implementation: str
    verdict: Verdict
    error: str = ""
    error_type: str = ""
    raised_by: Raiser | Literal[""] = ""
    where: str = ""
    undecided: str = ""
    sometimes: str = ""
    unlike_forward: Explanation = NOTHING
    comparison: Comparison | None = None
    first_run: Comparison | None = None
    calls: int | None = None
    recomputations: int | None = None
    costs: Costs | None = None
    not_measured: str = ""
    time_ratio: float | None = None
    time_spread: Spread | None = None
    warnings: tuple[Warned, ...] = ()
    explanation: Explanation = NOTHING
    choice: Choice | None = None
    over_budget: str = ""
    budget_error: str = ""


@dataclass(frozen=True)
class Report:
    """What a check found. ``spread`` is what differs between ``plain_runs``, ``initial_values_differ`` between two builds.

    ``reentrant_calls`` counts calls of the model that ask for ``use_reentrant=True``, which is ignored. ``uncalled`` has, by
    glob, matching modules that are not regions because the step does not call them. ``other_leaves`` has the shapes of tensors
    that get a gradient in a plain step, and that neither the model nor the loss reaches before it, so that it is not compared.
    ``chosen_by`` is what regions are chosen by with a budget: what it takes to run them again, in this unit.
    ``not_measured`` says why there are no figures of ``plain``, if so; ``other_leaves`` may lack some then.
    ``plain_seconds`` are those of the fastest plain step. ``devices`` are those of the model's parameters.
    """

    regions: tuple[str, ...]
    plain_runs: int
    spread: Comparison
    initial_values_differ: tuple[str, ...]
    spread_explanation: Explanation
    plain: Costs | None
    results: tuple[Result, ...]
    region_costs: tuple[RegionCosts, ...] = ()
    chosen_by: Unit | Literal[""] = ""
    reentrant_calls: int = 0
    uncalled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other_leaves: tuple[str, ...] = ()
    not_measured: str = ""
    plain_seconds: float = math.inf
    versions: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    steps: int = 0

    @property
    def agrees(self) -> bool:
        """Whether every implementation agrees, with all regions and with those chosen for a budget, which each keeps."""
        return self._has_only("agrees") and not self._is_over_budget

    @property
    def passes(self) -> bool:
        """Whether none ``fails``, and each keeps the budget, if there is one."""
        return not (self.fails or self._is_over_budget)

    @property
    def fails(self) -> bool:
        """Whether an implementation diverges, refuses or crashes, with all regions or with those chosen for a budget.

        Or it cannot be told whether it agrees although plain's own runs are equal, so that its own are all that differs.
        """
        return not self._has_only("agrees", *(() if self.spread.agrees else (UNDECIDED,)))

    @property
    def _is_over_budget(self) -> bool:
        return any(one.over_budget for one in self.results)

    def _has_only(self, *verdicts: Verdict) -> bool:
        within_budget = all(one.choice is None or one.choice.verdict in verdicts for one in self.results)
        has_error = any(one.budget_error for one in self.results)
        return within_budget and not has_error and all(one.verdict in verdicts for one in self.results)

    def as_json(self) -> str:
        """Everything, for a program, ``agrees`` and ``passes`` included; a number that is not finite is null."""
        content = {"agrees": self.agrees, "passes": self.passes, **dataclasses.asdict(self)}
        for stored, one in zip(content["results"], self.results, strict=True):
            stored["rounding_alone"] = one.comparison is not None and one.comparison.is_rounding
            if one.choice is not None:
                stored["choice"]["agrees"] = one.choice.agrees
        return json.dumps(_finite(content), indent=2, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(text_of(self))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
