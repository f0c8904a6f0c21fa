"""Holds implementations to the laws that take ranks: programs are drawn, shrunk and counted as those of one process are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis.strategies import SearchStrategy

import impls
from conformance.distributed.answer import Answer, Task, Unjudged, WorldEnded
from conformance.distributed.case import RankedCase, judge
from conformance.distributed.case_numbers import number_of_cases
from conformance.distributed.law import RankedLaw
from conformance.distributed.script import Smaller, program_in, reduced, script
from conformance.distributed.world import World, Worlds
from conformance.judging.explorer import Explorer
from conformance.judging.judge import Outcome
from conformance.judging.law import Law, Profile
from conformance.judging.result import Result
from conformance.judging.verdicts import Verdict
from conformance.meters.interruptions import Timeout
from conformance.programs.nesting_switch import nesting
from conformance.programs.sums import Comparable
from impls import Implementation
from impls.distributed_limits import declared

# The capabilities that programs of laws that take ranks may depend on: these laws are asked for them with no others.
DECIDE_PROGRAMS = frozenset({"rng", "nesting"})
LONGER = 4  # times the limit, for plain's second try
SECONDS_OF_SMALLER = 5.0  # in which a program must end that was made smaller
GRACE_OF_SMALLER = 0.2  # seconds that ranks get for their ends once another one has raised
CONTROL = "nested"  # if it is declared to keep a law, else another that is


def control_of(law: RankedLaw) -> Implementation | None:
    """A built-in implementation that is declared to keep a law; None if there is none.

    If a smaller program goes wrong under it, the program itself is wrong.
    """
    for one in map(impls.get, dict.fromkeys((CONTROL, *impls.names("checkpoint")))):
        if Verdict(replace(one, known=declared(one)).expected(law.name, law.needs)) is Verdict.AGREES:
            return one
    return None


def in_time(answers: list[Answer]) -> list[Answer]:
    """Plain's answers. Raises WorldEnded if a limit ended one of them, which is nothing to compare with."""
    for one in answers:
        if isinstance(one.observation.error, Timeout):
            raise WorldEnded(f"rank {one.rank}: {one.observation.error}", hangs=True)
    return answers


class RankedExplorer(Explorer):
    """Holds implementations to laws in worlds. ``found_as`` has the names by which ranks find them, if not their own.

    ``earlier`` gives the script that an earlier run made for a law and an implementation, "" if there is none. Where its
    program still shows the fault, no smaller one is searched for.
    """

    def __init__(
        self,
        worlds: Worlds,
        profile: Profile,
        seed: int,
        found_as: Mapping[str, str] | None = None,
        earlier: Callable[[str, str], str] = lambda law, implementation: "",
    ) -> None:
        super().__init__(worlds.device, profile, seed)
        self.worlds, self.found_as, self.earlier = worlds, found_as or {}, earlier
        self.answers: dict[Task, list[Answer]] = {}  # plain's, of the law that is being held
        self.hung: tuple[tuple[str, str, str], Outcome] | None = None  # the last one whose ranks have certainly waited
        self.is_reducing = False  # programs that are tried now were made smaller
        self.smallest: list[Smaller] = []  # programs that were made smaller, of the same law

    def plainly(self, task: Task, world: World) -> list[Answer]:
        """Plain's answers, asked for once; without one in time, once more and longer: the machine may have been held up.

        A program that was made smaller and does not end is asked for no more.
        """
        if task in self.answers:
            return self.answers[task]
        try:
            self.answers[task] = in_time(world.run(task))
        except WorldEnded as ended:
            if not ended.hangs or self.is_reducing:
                raise
            with world.limited(LONGER * world.seconds, world.grace):
                self.answers[task] = in_time(world.run(task))
        return self.answers[task]

    def strategies(self, law: Law, claims: Implementation) -> list[SearchStrategy[Any]]:
        """The programs of a law; if an implementation does not claim nesting, their argument ``nested`` is False."""
        drawn = law.strategies(claims)
        return [*drawn] if law.may_nest(claims) else [nesting(one, allowed=False) for one in drawn]

    def programs(self, law: Law, claims: Implementation) -> list[Comparable]:
        """The distinct programs that a law is tried on, drawn once for all that claim the same of what they may depend on."""
        seen = replace(claims, name="any", capabilities=claims.capabilities & DECIDE_PROGRAMS, known={})
        return super().programs(law, seen)

    def whole_number(self, law: Law, claims: Implementation) -> float:
        """How many cases there are of each of a law's strategies."""
        self.forget_others(law)
        strategies = len(law.strategies(claims))
        return number_of_cases(law, self.profile, strategies) / strategies

    def floor(self, law: Law, claims: Implementation) -> int:
        """How many cases must prove something, of those that there are."""
        return min(law.floor, len(self.programs(law, claims)))

    def size(self, program: Comparable, law: Law) -> tuple[int, int]:
        """By what programs are compared when one is to be shown: by their lines, and then by their text."""
        return program.source.count("\n"), len(program.source)

    def case(self, law: RankedLaw, program: Comparable, implementation: Implementation) -> RankedCase:
        """A case of a law, which runs once it is asked for what ranks did."""
        subject = self.found_as.get(implementation.name, implementation.name)
        world = self.worlds.of(law.ranks)
        plainly = functools.partial(self.plainly, world=world)
        return RankedCase(program, implementation, world.size, world.run, plainly, law.names, subject, law.options, law.counts)

    def judge(self, law: Law, program: Comparable, implementation: Implementation) -> Outcome:
        """The outcome of a program. One that hangs while its ranks certainly wait for each other is not run twice."""
        assert isinstance(law, RankedLaw)
        recomputes = law.recomputes and "recomputes" in implementation.capabilities
        check: Callable[[Any], None] = law.check
        asked = law.name, program.source, implementation.name
        if self.hung is not None and self.hung[0] == asked:
            return self.hung[1]
        outcome = judge(check, self.case(law, program, implementation), recomputes=recomputes, gradients=law.gradients)
        if outcome.verdict is Verdict.HANGS and self.worlds.of(law.ranks).waited:
            self.hung = asked, outcome
        return outcome

    def row(self, law: RankedLaw, implementation: Implementation, claims: Implementation | None = None) -> dict[str, Any]:
        """The row of a law, by the claims of that or another implementation."""
        if law is not self.current:
            self.answers.clear()
            self.smallest.clear()
        claims = claims or implementation
        result = self.hold(law, implementation, replace(claims, known=declared(claims)))
        return {**replace(result, program=None).row(), "program": self.script(result), "ranks": self.worlds.of(law.ranks).size}

    def raised(self, law: RankedLaw, program: Comparable) -> list[type]:
        """The types of what ranks raise with plain regions."""
        return [type(one.observation.error) for one in self.case(law, program, impls.get("plain")).plain]

    def shown(self, program: Smaller, result: Result, raised: list[type]) -> Outcome | None:
        """What a smaller program shows of the fault of a result; None if it has not the fault, or goes wrong by itself.

        It does if ranks raise something else with plain regions than is ``raised`` by the whole program, or if the control
        does not agree on it.
        """
        law = result.law
        assert isinstance(law, RankedLaw)
        control = control_of(law)
        try:
            if self.raised(law, program) != raised:  # asked first: most programs that are no programs any more end here
                return None
            outcome = self.judge(law, program, result.implementation)
            if (outcome.verdict, outcome.cause) != (result.verdict, result.cause):
                return None
            if control is None or control.name == result.implementation.name:
                return outcome
            return outcome if self.judge(law, program, control).verdict is Verdict.AGREES else None
        except (Unjudged, ValueError):  # no verdict: it does not end with plain regions, or the law lacks something in it
            return None

    def script(self, result: Result) -> str:
        """The script of a result; where programs are made smaller, with all left out that its fault does not need.

        A program that notes all that it holds is not: without a part of the note, what it holds itself would be told of.
        """
        assert isinstance(result.law, RankedLaw)
        world, options = self.worlds.of(result.law.ranks), result.written_options()
        shrinks = self.profile.shrink_declared or not result.as_declared
        if result.program is None or result.measured is None or result.verdict is Verdict.HANGS or not shrinks:
            return script(result, world.size, options)

        shows = functools.partial(self.shown, result=result, raised=self.raised(result.law, result.program))
        before = program_in(self.earlier(result.law.name, result.implementation.name), result)
        known = [*([] if before is None else [before]), *self.smallest]
        with world.limited(SECONDS_OF_SMALLER, GRACE_OF_SMALLER):
            self.is_reducing = True
            try:
                smallest = reduced(result, options, shows, known)
            finally:
                self.is_reducing = False
        if isinstance(smallest.program, Smaller):
            self.smallest.append(smallest.program)
        return script(smallest, world.size, options)
