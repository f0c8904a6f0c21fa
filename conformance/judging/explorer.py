"""How an implementation is judged by a law: draw programs, judge each, take the worst verdict, shrink its program."""

from __future__ import annotations

import gc
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from conformance.judging.case_numbers import CASES_OF_FLOOR, number_of_cases
from conformance.judging.causes import shortened
from conformance.judging.judge import Case, Observation, Outcome, judge, plainly
from conformance.judging.law import Law, Profile
from conformance.judging.program_size import operations
from conformance.judging.result import Result
from conformance.judging.verdicts import CALL_REFUSED, Verdict
from conformance.programs.nesting_switch import nesting
from conformance.programs.sums import Comparable
from conformance.rows import results_file
from impls import Implementation, Kind

TINY = 1e-9  # so that a number of cases is not rounded up for what floating point adds to it
CASES_BEFORE_REFUSED = 20  # of a law that is expected to be kept, where too few prove anything because calls were refused


def _claimed(claims: Implementation) -> tuple[Any, ...]:
    """The claims that programs may depend on."""
    return claims.name, claims.capabilities, frozenset((law, limit.verdict) for law, limit in claims.known.items())


def _program_key(law: Law, claims: Implementation) -> tuple[Any, bool, float]:
    """Which claims have the same programs of a law."""
    return _claimed(claims) if callable(law.programs) else (), law.may_nest(claims), claims.share


def declaration(law: Law, claims: Implementation) -> str:
    """A digest of the parts of a declaration that a law's row depends on: other laws' limits only if programs use them."""
    limit = claims.known.get(law.name)
    others = sorted((name, one.verdict) for name, one in claims.known.items()) if callable(law.programs) else []
    own = claims.expected(law.name, law.needs), None if limit is None else asdict(limit)
    return results_file.digest(json.dumps([claims.name, sorted(claims.capabilities), claims.share, own, others]))[:12]


def _worst(outcomes: Iterable[Outcome]) -> Verdict:
    return max((outcome.verdict for outcome in outcomes), key=lambda verdict: verdict.severity)


def _witness(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome with the worst verdict and, among these, the shortest program."""
    return min(outcomes, key=lambda outcome: (-outcome.verdict.severity, len(outcome.program.source)))


class Explorer:
    """Judges implementations by laws. Programs and plain's runs are made once per law and shared by implementations."""

    def __init__(self, device: str, profile: Profile, seed: int) -> None:
        self.device, self.profile, self.seed = device, profile, seed
        self.current: Law | None = None
        self.drawn: dict[tuple[Any, bool, float], list[Comparable]] = {}
        self.numbers: dict[Any, float] = {}  # of cases of the current law
        self.references: dict[str, Observation] = {}
        self.found: list[Outcome] = []  # of the current law
        self.effect: Callable[[Case], None] | None = None  # the effect that is declared under the current law
        self.latest: tuple[float, int | None] = 1, None  # of the last draw: how many times the law's cases, and the seed

    def reference(self, program: Comparable, device: str, kind: Kind) -> Observation:
        """Plain's run of the program."""
        if program.source not in self.references:
            self.references[program.source] = plainly(program, device, kind)
        return self.references[program.source]

    def given(
        self,
        strategy: SearchStrategy[Any],
        cases: int,
        phases: tuple[Phase, ...],
        use: Callable[[Any], None],
        seed: int | None = None,
    ) -> None:
        """Let Hypothesis draw programs, the same ones each time, and call ``use`` with each. What ``use`` raises ends it."""

        @hypothesis.seed(self.seed if seed is None else seed)
        @settings(max_examples=cases, database=None, deadline=None, phases=phases, report_multiple_bugs=False,
                  suppress_health_check=list(HealthCheck), print_blob=False)  # fmt: skip
        @hypothesis.given(strategy)
        def drive(program: Any) -> None:
            use(program)

        drive()

    def number(self, law: Law, claims: Implementation, times: float = 1) -> int:
        """How many programs of each of a law's strategies are drawn, for an implementation that has its share of the cases."""
        return max(1, math.ceil(self.whole_number(law, claims) * claims.share * times - TINY))

    def whole_number(self, law: Law, claims: Implementation) -> float:
        """How many cases there are of each of a law's strategies."""
        self.forget_others(law)
        if (key := _program_key(law, claims)) not in self.numbers:
            strategies = len(law.strategies(claims))
            self.numbers[key] = number_of_cases(law, self.profile, strategies) / strategies
        return self.numbers[key]

    def draw(
        self,
        law: Law,
        claims: Implementation,
        use: Callable[[Any], None],
        phases: tuple[Phase, ...] = (Phase.generate,),
        times: float = 1,
        seed: int | None = None,
    ) -> None:
        """Draw programs of a law: ``times`` as many as a run has, with the run's seed or another."""
        for strategy in self.strategies(law, claims):
            self.given(strategy, self.number(law, claims, times), phases, use, seed)

    def strategies(self, law: Law, claims: Implementation) -> list[SearchStrategy[Any]]:
        """The programs that a law is about, without those that nest if nesting is neither needed nor claimed."""

        def flat(program: Comparable) -> bool:
            return not self.reference(program, self.device, law.kind).nested

        drawn = law.strategies(claims)
        return [*drawn] if law.may_nest(claims) else [nesting(one, allowed=False).filter(flat) for one in drawn]

    def forget_others(self, law: Law) -> None:
        """Forget what belongs to another law."""
        if law is not self.current:
            self.current = law
            self.drawn.clear()
            self.numbers.clear()
            self.references.clear()
            gc.collect()
            gc.freeze()  # so that collections need not search what torch and the suite made

    def use_drawn(self, law: Law, claims: Implementation, programs: list[Comparable]) -> None:
        """Use these programs of a law, which another explorer has drawn, instead of drawing them."""
        self.forget_others(law)
        self.drawn[_program_key(law, claims)] = programs

    def programs(self, law: Law, claims: Implementation) -> list[Comparable]:
        """The distinct programs that a law is tried on."""
        self.forget_others(law)
        if (key := _program_key(law, claims)) not in self.drawn:
            found: dict[str, Comparable] = {}
            try:
                if self.profile.exhaustive and law.every:
                    all_of_them = islice(law.every(claims), None, None, round(1 / claims.share))
                    found = {program.source: program for program in all_of_them}
                else:
                    self.draw(law, claims, lambda program: found.update({program.source: program}))
            except hypothesis.errors.Unsatisfiable as error:
                raise ValueError(f"law {law.name} has no programs for what {claims.name!r} claims; it needs a claim") from error
            self.drawn[key] = list(found.values())
        return self.drawn[key]

    def floor(self, law: Law, claims: Implementation) -> int:
        """How many cases must prove something: the law's floor, reduced in proportion to the programs that are left out."""
        whole = self.number(law, replace(claims, share=1.0)) * len(law.strategies(claims))
        part = min(1, whole / (CASES_OF_FLOOR * law.effort))
        if law.may_nest(claims) and claims.share == 1:
            return math.ceil(law.floor * part)
        left = len(self.programs(law, claims))
        capabilities = claims.capabilities if law.may_nest(claims) else claims.capabilities | {"nesting"}
        all_of_them = len(self.programs(law, replace(claims, capabilities=capabilities, share=1.0)))
        return math.ceil(law.floor * part * min(1, left / all_of_them))

    def judge(self, law: Law, program: Comparable, implementation: Implementation) -> Outcome:
        case = Case(program, implementation, self.device, law.options, self.reference, law.names)
        state = random.getstate()
        try:
            recomputes = law.recomputes and "recomputes" in implementation.capabilities
            return judge(law.check, case, recomputes=recomputes, gradients=law.gradients, effect=self.effect)
        finally:
            random.setstate(state)

    def outcomes(self, law: Law, implementation: Implementation, claims: Implementation) -> list[Outcome]:
        """The outcome of each program, up to the first that hangs twice: one hang may be due to a busy machine."""
        self.latest = 1, None
        found = self.found = []
        for program in self.programs(law, claims):
            found.append(self.judge(law, program, implementation))
            if found[-1].verdict is Verdict.HANGS:
                found[-1] = self.judge(law, program, implementation)
                if found[-1].verdict is Verdict.HANGS:
                    break
        return found

    def too_few_prove(self, law: Law, claims: Implementation, outcomes: list[Outcome]) -> bool:
        """Whether fewer of these outcomes prove something than must."""
        return sum(not outcome.vacuous for outcome in outcomes) < self.floor(law, claims)

    def expect_effect(self, law: Law, claims: Implementation) -> None:
        """Judge a declared divergence under this law by the effect that its declaration names, if it names one."""
        limit = claims.known.get(law.name)
        self.effect = law.effects[limit.effect] if limit and limit.effect else None

    def settled(self, law: Law, claims: Implementation, outcomes: list[Outcome]) -> list[Outcome]:
        """The outcomes. If too few prove anything because calls were refused, these outcomes count as refusals."""
        if not any(one.vacuous == CALL_REFUSED for one in outcomes) or not self.too_few_prove(law, claims, outcomes):
            return outcomes
        refused = [
            replace(one, verdict=Verdict.REFUSES, vacuous="") if one.vacuous == CALL_REFUSED else one for one in outcomes
        ]
        return refused if _worst(refused) is Verdict.REFUSES else outcomes

    def hold(self, law: Law, implementation: Implementation, claims: Implementation) -> Result:
        """Judge an implementation by a law, and by the claims of this or another implementation."""
        started = time.perf_counter()
        if implementation.kind != law.kind:
            raise ValueError(f"law {law.name} judges kind {law.kind!r}, {implementation.name!r} is of {implementation.kind!r}")
        judged = replace(implementation, capabilities=claims.capabilities, known={})
        self.expect_effect(law, claims if implementation.declared else replace(claims, known={}))
        collecting = gc.isenabled()
        gc.disable()  # a lifetime that needs the collector is a fault that must show
        try:
            outcomes = self.outcomes(law, judged, claims)
            settled = self.settled(law, claims, outcomes)
            expected = Verdict(claims.expected(law.name, law.needs))
            if expected is Verdict.AGREES and _worst(outcomes) is Verdict.AGREES and self.too_few_prove(law, claims, outcomes):
                outcomes = self.until_proven(law, judged, claims)
                settled = self.settled(law, claims, outcomes)
            if self.profile.patience and implementation.declared and _worst(settled).severity < expected.severity:
                outcomes = settled = self.patiently(law, judged, claims, expected)
            shown, worst = _witness(settled), _worst(settled)
            # Each try of a program that hangs takes the whole limit, and a refused call was an outcome that agrees.
            small = worst in (Verdict.AGREES, Verdict.HANGS) or settled is not outcomes
            if not small and (worst is not expected or self.profile.shrink_declared):
                shown = self.shrink(law, judged, claims, shown)
        finally:
            if collecting:
                gc.enable()
        return replace(self.result(law, judged, claims, settled, shown), seconds=time.perf_counter() - started)

    def result(
        self, law: Law, judged: Implementation, claims: Implementation, outcomes: list[Outcome], shown: Outcome | None = None
    ) -> Result:
        """The result of these outcomes; ``shown`` is the one with the worst verdict that the row shows."""
        otherwise = [outcome for outcome in outcomes if outcome.beyond]
        worst, shown = _worst(outcomes), shown or _witness(outcomes)
        if otherwise and shown.verdict is Verdict.DIVERGES:
            shown = _witness(otherwise)
        proof = sum(not outcome.vacuous for outcome in outcomes if outcome.verdict is Verdict.AGREES)
        vacuous, reasons = "", Counter[str]()
        if worst is Verdict.AGREES and proof < (floor := self.floor(law, claims)):
            reasons.update(outcome.vacuous for outcome in outcomes if outcome.vacuous)
            vacuous = f"only {proof} of {len(outcomes)} cases prove anything, {floor} must: {dict(reasons)}"
        expected = Verdict(claims.expected(law.name, law.needs))
        counts = Counter(outcome.verdict for outcome in outcomes)
        program = None if worst is Verdict.AGREES else shown.program
        known = claims.known.get(law.name) if judged.declared else None  # else the limit is another implementation's
        agrees = worst is Verdict.AGREES
        return Result(
            law=law,
            implementation=judged,
            device=self.device,
            expected=expected,
            verdict=worst,
            counts=counts,
            detail="" if agrees else shown.detail,
            program=program,
            vacuous=vacuous,
            seconds=0.0,
            measured=shown.measured,
            known=known,
            declaration=declaration(law, claims),
            units=shown.units,
            cause=shortened(vacuous) if agrees else shown.cause,
            unproven=reasons,
            beyond=f"not the declared effect, {known.effect!r}: {shown.beyond}" if known and shown.beyond else "",
        )

    def patiently(self, law: Law, implementation: Implementation, claims: Implementation, expected: Verdict) -> list[Outcome]:
        """Outcomes up to the first with the declared verdict: a rare limit gets more cases before it counts as gone.

        If its declaration names a seed with which it shows, the programs of that seed come first.
        """
        limit = claims.known.get(law.name)
        patience = self.profile.patience if limit else self.profile.patience / 10  # else a capability is missing
        seeds = (None,) if limit is None or limit.seed is None else (limit.seed, None)
        self.found = []
        self.judge_until(
            lambda found: _worst(found).severity >= expected.severity, law, implementation, claims, patience, seeds
        )
        return self.found

    def until_proven(self, law: Law, implementation: Implementation, claims: Implementation) -> list[Outcome]:
        """The outcomes of more cases, up to the first that makes proof enough.

        Some programs of a law may be refused or prove nothing, and the few that a short profile draws may all be of those.
        """
        cases = max(CASES_BEFORE_REFUSED, self.profile.cases * law.effort, 2 * len(self.found))
        self.judge_until(lambda found: not self.too_few_prove(law, claims, found), law, implementation, claims, cases)
        return self.found

    def judge_until(
        self,
        enough: Callable[[list[Outcome]], bool],
        law: Law,
        implementation: Implementation,
        claims: Implementation,
        cases: float,
        seeds: tuple[int | None, ...] = (None,),
    ) -> None:
        """Add the outcomes of up to so many cases, with each seed, to those that were found, up to where they are enough."""
        times = max(1.0, cases / (self.whole_number(law, claims) * len(law.strategies(claims))))
        judged = {outcome.program.source for outcome in self.found}

        class Enough(Exception):
            pass

        def use(program: Comparable) -> None:
            if program.source not in judged:
                judged.add(program.source)
                self.found.append(self.judge(law, program, implementation))
            if enough(self.found):  # also if Hypothesis repeats the program, to see whether it raises again
                raise Enough

        for seed in seeds:
            self.latest = times, seed
            try:
                self.draw(law, claims, use, times=times, seed=seed)
            except Enough:
                break

    def size(self, program: Comparable, law: Law) -> tuple[int, int]:
        """The key by which the smallest program is chosen."""
        return operations(program, self.device, law.kind), len(program.source)

    def shrink(self, law: Law, implementation: Implementation, claims: Implementation, witness: Outcome) -> Outcome:
        """The smallest program found with the same verdict: by the number of operations, and then by the length of its text.

        The last draw is repeated up to the first program with that verdict, which Hypothesis then shrinks.
        """
        best = witness
        least = self.size(witness.program, law)
        known = {outcome.program.source: outcome for outcome in self.found}
        limit = len(known) + self.profile.shrinks

        class Found(Exception):
            pass

        def use(program: Comparable) -> None:
            nonlocal best, least
            if program.source not in known:
                if least[0] <= self.profile.small or len(known) >= limit:
                    return
                known[program.source] = self.judge(law, program, implementation)
            outcome = known[program.source]
            if outcome.verdict is witness.verdict:
                size = self.size(program, law)
                if size <= least:
                    best, least = outcome, size
                raise Found

        times, seed = self.latest
        with suppress(Found, hypothesis.errors.Flaky, hypothesis.errors.Unsatisfiable):  # best has the result
            self.draw(law, claims, use, (Phase.generate, Phase.shrink), times, seed)
        return best
