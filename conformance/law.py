"""What a law is, and how an implementation is held to it: explore, take the worst case, shrink it."""

from __future__ import annotations

import gc
import importlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from conformance.judge import Case, Observation, Outcome, judge, plainly
from conformance.nesting import nesting
from conformance.programs import Runnable
from conformance.result import Result
from conformance.size import operations
from conformance.verdicts import Verdict
from impls import Implementation, Kind

Programs = SearchStrategy[Any] | Callable[[Implementation], SearchStrategy[Any]]


@dataclass(frozen=True)
class Profile:
    """How much is run: cases of a law, evaluations spent on shrinking, and whether declared limits are shrunk too.

    ``patience`` is the number of cases after which a declared limit that did not show is said to be gone.
    A program of ``small`` operations or fewer is not shrunk any further.
    """

    cases: int
    shrinks: int
    shrink_declared: bool
    patience: int = 2000
    small: int = 0


PROFILES = {
    "quick": Profile(12, 150, False),
    "round": Profile(25, 400, False, patience=0),  # one of many with other seeds: a limit that does not show says nothing
    "default": Profile(60, 200, True),
    "soak": Profile(1000, 1000, True),
}


@dataclass(frozen=True)
class Law:
    """A property of checkpointing. ``floor`` cases at least must prove something, or the law was not tested.

    ``programs`` is a strategy, or makes one for an implementation from what it claims. ``needs`` are the capabilities
    without which an implementation is expected to refuse. ``gradients`` and ``recomputes`` say what a case must show
    in order to count: a gradient that is not zero, a function called more often than under plain. ``kind`` is the kind
    of implementations that the law is about. ``devices`` are the device types on which it is judged, any if there are none,
    and ``at_least`` so many devices of the type must be there.

    Programs that nest are left out for an implementation that does not claim nesting, unless the law needs it.
    """

    name: str
    family: str
    statement: str
    check: Callable[[Case], None]
    programs: Programs
    needs: frozenset[str] = frozenset()
    floor: int = 5
    gradients: bool = True
    recomputes: bool = True
    effort: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "checkpoint"
    devices: frozenset[str] = frozenset()
    at_least: int = 1

    def lacks(self, device: str) -> str:
        """What this device lacks for the law to be judged on it; "" if nothing."""
        kind = torch.device(device).type
        if self.devices and kind not in self.devices:
            return f"a device of type {' or '.join(sorted(self.devices))}"
        there = 1 if self.at_least == 1 else torch.get_device_module(kind).device_count()
        return "" if there >= self.at_least else f"{self.at_least} devices of type {kind}, of which there is {there}"

    def may_nest(self, claims: Implementation) -> bool:
        """Whether programs that nest belong to the law, when an implementation that makes these claims is held to it."""
        return self.kind != "checkpoint" or "nesting" in self.needs | claims.capabilities

    def strategy(self, claims: Implementation) -> SearchStrategy[Any]:
        return self.programs if isinstance(self.programs, SearchStrategy) else self.programs(claims)


LAWS: dict[str, Law] = {}  # those of the modules that were imported


def _claimed(claims: Implementation) -> tuple[Any, ...]:
    """What programs may depend on."""
    return claims.name, claims.capabilities, frozenset((law, limit.verdict) for law, limit in claims.known.items())


def _worst(outcomes: Iterable[Outcome]) -> Verdict:
    return max((outcome.verdict for outcome in outcomes), key=lambda verdict: verdict.severity)


def _witness(outcomes: Iterable[Outcome]) -> Outcome:
    """Of the outcomes with the worst verdict the one with the shortest program."""
    return min(outcomes, key=lambda outcome: (-outcome.verdict.severity, len(outcome.program.source)))


def law(
    programs: Programs,
    *,
    needs: Iterable[str] = (),
    floor: int = 5,
    gradients: bool = True,
    recomputes: bool = True,
    effort: float = 1.0,
    family: str = "",
    kind: Kind = "checkpoint",
    devices: Iterable[str] = (),
    at_least: int = 1,
    **options: Any,
) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """Make a test of a law. Its first docstring line is the statement, its module names the family unless ``family`` does.

    ``effort`` scales the number of cases, ``devices`` and ``at_least`` say where it is judged; ``options`` are passed to
    the implementation's checkpoint.
    """

    def make(check: Callable[[Case], None]) -> Callable[..., None]:
        if not check.__doc__:
            raise ValueError(f"law {check.__name__} has no statement: write a docstring")
        name = check.__name__.removeprefix("test_")
        belongs = family or check.__module__.rsplit(".", 1)[-1].removeprefix("test_")
        statement = check.__doc__.splitlines()[0]
        made = Law(
            name, belongs, statement, check, programs, frozenset(needs), floor, gradients, recomputes, effort, options, kind,
            frozenset(devices), at_least,
        )  # fmt: skip
        if name in LAWS and LAWS[name].family != belongs:
            raise ValueError(f"two laws are called {name}: in {LAWS[name].family} and in {belongs}")
        LAWS[name] = made

        def test(hold: Callable[[Law], None]) -> None:
            hold(made)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        cast(Any, test).law = made
        return test

    return make


def all_laws() -> dict[str, Law]:
    """Every law that there is, by its name."""
    for path in sorted((Path(__file__).parent / "laws").glob("test_*.py")):
        importlib.import_module(f"conformance.laws.{path.stem}")
    return LAWS


class Explorer:
    """Holds implementations to laws. Programs and plain's runs are made once per law and shared by implementations."""

    def __init__(self, device: str, profile: Profile, seed: int) -> None:
        self.device, self.profile, self.seed = device, profile, seed
        self.current: Law | None = None
        self.drawn: dict[tuple[Any, bool, float], list[Runnable]] = {}
        self.references: dict[str, Observation] = {}
        self.found: list[Outcome] = []  # of the law that is being held

    def reference(self, program: Runnable, device: str, kind: Kind) -> Observation:
        """Plain's run of the program."""
        if program.source not in self.references:
            self.references[program.source] = plainly(program, device, kind)
        return self.references[program.source]

    def given(self, strategy: SearchStrategy[Any], cases: int, phases: tuple[Phase, ...], use: Callable[[Any], None]) -> None:
        """Let Hypothesis draw programs, the same ones each time, and hand them over."""

        @hypothesis.seed(self.seed)
        @settings(max_examples=cases, database=None, deadline=None, phases=phases, report_multiple_bugs=False,
                  suppress_health_check=list(HealthCheck), print_blob=False)  # fmt: skip
        @hypothesis.given(strategy)
        def drive(program: Any) -> None:
            use(program)

        drive()

    def strategy(self, law: Law, claims: Implementation) -> SearchStrategy[Any]:
        """The programs that a law is about, without those that nest where that is neither needed nor claimed."""
        drawn = law.strategy(claims)
        if law.may_nest(claims):
            return drawn
        return nesting(drawn, allowed=False).filter(lambda program: not self.reference(program, self.device, law.kind).nested)

    def programs(self, law: Law, claims: Implementation, times: float = 1) -> list[Runnable]:
        """The distinct programs that a law is tried on, ``times`` as many as the profile says."""
        times *= claims.share
        key = (() if isinstance(law.programs, SearchStrategy) else _claimed(claims), law.may_nest(claims), times)
        if law is not self.current:
            self.current = law
            self.drawn.clear()
            self.references.clear()
            gc.collect()
            gc.freeze()  # what torch and the suite made is not to be searched again at every collection
        if key not in self.drawn:
            found: dict[str, Runnable] = {}
            cases = max(1, round(self.profile.cases * law.effort * times))
            try:
                self.given(self.strategy(law, claims), cases, (Phase.generate,), lambda p: found.update({p.source: p}))
            except hypothesis.errors.Unsatisfiable as error:
                raise ValueError(f"law {law.name} has no programs for what {claims.name!r} claims; it needs a claim") from error
            self.drawn[key] = list(found.values())
        return self.drawn[key]

    def floor(self, law: Law, claims: Implementation) -> int:
        """How many cases must prove something: fewer than the law says in proportion to the programs that are left out."""
        if law.may_nest(claims) and claims.share == 1:
            return law.floor
        left = len(self.programs(law, claims))
        capabilities = claims.capabilities if law.may_nest(claims) else claims.capabilities | {"nesting"}
        all_of_them = len(self.programs(law, replace(claims, capabilities=capabilities, share=1.0)))
        return math.ceil(law.floor * min(1, left / all_of_them))

    def judge(self, law: Law, program: Runnable, implementation: Implementation) -> Outcome:
        case = Case(program, implementation, self.device, law.options, self.reference)
        state = random.getstate()
        try:
            recomputes = law.recomputes and "recomputes" in implementation.capabilities
            return judge(law.check, case, recomputes=recomputes, gradients=law.gradients)
        finally:
            random.setstate(state)

    def outcomes(self, law: Law, implementation: Implementation, claims: Implementation) -> list[Outcome]:
        """The outcome of each program, up to the first that hangs twice: once may have been a machine that was busy."""
        found = self.found = []
        for program in self.programs(law, claims):
            found.append(self.judge(law, program, implementation))
            if found[-1].verdict is Verdict.HANGS:
                found[-1] = self.judge(law, program, implementation)
                if found[-1].verdict is Verdict.HANGS:
                    break
        return found

    def hold(self, law: Law, implementation: Implementation, claims: Implementation) -> Result:
        """Hold an implementation to a law, by the claims of that or another implementation."""
        started = time.perf_counter()
        if implementation.kind != law.kind:
            raise ValueError(f"law {law.name} judges kind {law.kind!r}, {implementation.name!r} is of {implementation.kind!r}")
        judged = replace(implementation, capabilities=claims.capabilities, known={})
        collecting = gc.isenabled()
        gc.disable()  # a lifetime that needs the collector is a fault that must show
        try:
            outcomes = self.outcomes(law, judged, claims)
            expected = Verdict(claims.expected(law.name, law.needs))
            if self.profile.patience and implementation.declared and _worst(outcomes).severity < expected.severity:
                outcomes = self.patiently(law, judged, claims, expected)
            shown, worst = _witness(outcomes), _worst(outcomes)
            small = worst in (Verdict.AGREES, Verdict.HANGS)  # each try of a program that hangs takes the whole limit
            if not small and (worst is not expected or self.profile.shrink_declared):
                shown = self.shrink(law, judged, claims, shown)
        finally:
            if collecting:
                gc.enable()
        return replace(self.result(law, judged, claims, outcomes, shown), seconds=time.perf_counter() - started)

    def result(
        self, law: Law, judged: Implementation, claims: Implementation, outcomes: list[Outcome], shown: Outcome | None = None
    ) -> Result:
        """What these outcomes give; ``shown`` is the one with the worst verdict that is told of."""
        worst, shown = _worst(outcomes), shown or _witness(outcomes)
        proof = sum(not outcome.vacuous for outcome in outcomes if outcome.verdict is Verdict.AGREES)
        vacuous = ""
        if worst is Verdict.AGREES and proof < (floor := self.floor(law, claims)):
            reasons = Counter(outcome.vacuous for outcome in outcomes if outcome.vacuous)
            vacuous = f"only {proof} of {len(outcomes)} cases prove anything, {floor} must: {dict(reasons)}"
        expected = Verdict(claims.expected(law.name, law.needs))
        counts = Counter(outcome.verdict for outcome in outcomes)
        program = None if worst is Verdict.AGREES else shown.program
        known = claims.known.get(law.name) if judged.declared else None  # else that is about another implementation
        return Result(
            law, judged, self.device, expected, worst, counts, shown.detail, program, vacuous, 0.0, shown.measured, known
        )

    def patiently(self, law: Law, implementation: Implementation, claims: Implementation, expected: Verdict) -> list[Outcome]:
        """Outcomes up to the first with the declared verdict: a rare limit gets more cases before it is said to be gone."""
        outcomes = self.found = []
        for program in self.programs(law, claims, self.profile.patience / (self.profile.cases * law.effort)):
            outcomes.append(self.judge(law, program, implementation))
            if outcomes[-1].verdict.severity >= expected.severity:
                break
        return outcomes

    def size(self, program: Runnable, law: Law) -> tuple[int, int]:
        """By what programs are compared when one is to be shown."""
        return operations(program, self.device, law.kind), len(program.source)

    def shrink(self, law: Law, implementation: Implementation, claims: Implementation, witness: Outcome) -> Outcome:
        """The smallest program found that gets the same verdict: of the fewest operations, and then of the shortest text."""
        best = witness
        least = self.size(witness.program, law)
        known: dict[str, Outcome] = {}

        class Found(Exception):
            pass

        def use(program: Runnable) -> None:
            nonlocal best, least
            if program.source not in known:
                if least[0] <= self.profile.small or len(known) >= self.profile.cases + self.profile.shrinks:
                    return
                known[program.source] = self.judge(law, program, implementation)
            outcome = known[program.source]
            if outcome.verdict is witness.verdict:
                size = self.size(program, law)
                if size <= least:
                    best, least = outcome, size
                raise Found

        try:
            cases = max(1, round(self.profile.cases * law.effort * claims.share))
            self.given(self.strategy(law, claims), cases, (Phase.generate, Phase.shrink), use)
        except (Found, hypothesis.errors.Flaky, hypothesis.errors.Unsatisfiable):
            pass  # best has it
        return best
