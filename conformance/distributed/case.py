"""One case under ranks: what each rank observed under plain and under an implementation, and what laws ask of it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from conformance.distributed.answer import Answer, Place, Region, Task, Unjudged, WorldEnded
from conformance.judging.causes import Cause, noted
from conformance.judging.judge import Case, Observation, Outcome
from conformance.judging.verdicts import (
    NOTHING_RECOMPUTED,
    Crashes,
    Diverges,
    Hangs,
    Judged,
    Measured,
    Refuses,
    Verdict,
    difference,
)
from conformance.programs.notes import read
from conformance.programs.sums import Comparable, Order, Sums
from impls import Implementation

Run = Callable[[Task], list[Answer]]
TWO = 2  # ranks up to which a sum over all of them has one order, so that it is exact
HANGS = Cause("ranks wait for each other without end")
ENDED = Cause("a rank ended")
COUNTED = Cause("ranks issue more or fewer collectives than are due")
ORDER = Cause("ranks issue different collectives")
RANKS_DIFFER = Cause("what is to be the same on all ranks is not", "wrong gradient")
KEPT = Cause("what regions made is alive on a rank that does not hold it", "leaked or late memory")


@dataclass(frozen=True)
class Reordered:
    """A program whose sums over ranks may be taken in another order, which depends on an entry's place in its bucket."""

    source: str
    sums: Sums


class RankCase(Case):
    """What one rank observed, as a case of its own: the program has run already."""

    answer: Answer

    def run(self, *_: Any) -> Observation:
        """What was observed. An error that plain does not raise ends the case with its verdict, as elsewhere."""
        seen = self.answer.observation
        if seen.error is not None and self.plain.error is None:
            self.failed = seen
            raise self.verdict(seen)
        return seen


@dataclass
class RankedCase:
    """One program under one implementation in a world of ``size`` ranks; ``plainly`` and ``run`` return all ranks' answers."""

    program: Comparable
    implementation: Implementation
    size: int
    run: Run
    plainly: Run
    names: frozenset[str]
    subject: str  # the name by which ranks find the implementation
    options: dict[str, Any] = field(default_factory=dict)
    counts: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """What the program was made with. Raises ValueError for one that does not say so, as that of a script does not."""
        if (found := getattr(self.program, "arguments", None)) is None:
            raise ValueError(f"the program does not say what it was made with:\n{self.program.source}")
        return dict(found)

    @functools.cached_property
    def plain(self) -> list[Answer]:
        """What ranks do with plain regions. Raises Unjudged when they do not all answer."""
        try:
            answers = self.plainly(Task(self.program.source, "", counts=self.counts))
        except WorldEnded as ended:
            raise Unjudged(f"a program does not end with plain regions: {ended.told}\n{self.program.source}") from ended
        for answer in answers:
            if answer.observation.earlier:
                raise Unjudged(f"a program notes a label twice: {answer.observation.earlier[0][0]}\n{self.program.source}")
        return answers

    @functools.cached_property
    def seen(self) -> list[Answer]:
        """What ranks do under the implementation. Raises Hangs and Crashes where one does not answer, or ends."""
        options = tuple(self.options.items())
        try:
            return self.run(Task(self.program.source, self.subject, options, self.counts))
        except WorldEnded as ended:
            if ended.hangs:
                raise Hangs(ended.told, Measured("hangs"), HANGS) from ended
            raise Crashes(ended.told, Measured("ends"), ENDED) from ended

    @functools.cached_property
    def _of_plain(self) -> list[RankCase]:
        """A case for each rank, of which only plain's side is there."""
        found = []
        program = self.program
        if self.size > TWO and program.sums.order is Order.SAME:
            program = Reordered(program.source, Sums(program.sums.terms, Order.ANY))
        for plain in self.plain:
            case = RankCase(program, self.implementation, "cpu", self.options, names=self.names)
            case.plain = plain.observation
            found.append(case)
        return found

    @functools.cached_property
    def ranks(self) -> list[RankCase]:
        """A case for each rank."""
        for case, seen in zip(self._of_plain, self.seen, strict=True):
            case.answer = seen
        return self._of_plain

    @property
    def units(self) -> float:
        """How far rounding may move a note of a rank, as ``Case.units``, where that is farthest."""
        return max(case.units for case in self._of_plain)

    @property
    def recomputed(self) -> bool:
        """Whether the function of a region was called more often than under plain, on some rank."""
        pairs = zip(self.plain, self.seen, strict=True)
        return any(one.observation.calls.total() < other.observation.calls.total() for one, other in pairs)

    @property
    def first_error(self) -> int | None:
        """The first rank that raised although plain does not: others may raise only because it left their group."""
        failed = [one for one, plain in zip(self.seen, self.plain, strict=True) if one.raised and not plain.raised]
        return min(failed, key=lambda one: one.raised).rank if failed else None

    def equals_plain(self) -> None:
        """On each rank every note equals plain's. The verdict of an error is that of the rank which raised first."""
        first = self.first_error
        for rank in sorted(range(self.size), key=lambda rank: rank == first):  # a silent difference on another rank is worse
            case = self.ranks[rank]
            if rank == first or case.answer.observation.error is None or case.plain.error is not None:
                with on_rank(rank):
                    case.equals_plain()
            else:
                self.noted_as_plain(rank)

    def noted_as_plain(self, rank: int) -> None:
        """What a rank noted before an error, its own or another rank's, equals plain's."""
        case = self.ranks[rank]
        for label, value in case.answer.observation.notes.items():
            if found := difference(case.plain.notes.get(label), value, label, terms=case.terms, scale=case.scale):
                raise Diverges(f"rank {rank}: {found.told()}", Measured("values"), noted(read(label), found))

    def equals_plain_or_refuses(self) -> bool:
        """True if the run equals plain's, False if it is refused."""
        try:
            self.equals_plain()
        except Refuses:
            return False
        return True

    def as_expected(self) -> None:
        """On each rank there is no error, and each note "seen X" equals the note "expected X"; there is at least one."""
        for rank in range(self.size):
            with on_rank(rank):
                self.ranks[rank].as_expected()

    def same_on_all_ranks(self, *labels: str) -> None:
        """These notes exist and are equal to the last bit on all ranks, which take the same sums of the same numbers."""
        first = self.seen[0].observation.notes
        for answer in self.seen[1:]:
            for label in labels:
                if label not in first:
                    raise ValueError(f"the program does not note {label!r}:\n{self.program.source}")
                if found := difference(first[label], answer.observation.notes[label], label):
                    told = f"rank {answer.rank}: {found.told('rank 0')}"
                    raise Diverges(told, Measured("expected", ((label, 0),)), RANKS_DIFFER)

    def issues(
        self, due: Counter[str], rank: int, *places: Place, whole: Counter[str], why: str, region: Region | None = None
    ) -> None:
        """A rank issues these collectives at these times, in a region or in all, and no others; the ``whole`` program those."""
        if not whole:
            raise ValueError(f"the program issues no collective:\n{self.program.source}")
        if (found := self.seen[rank].issued(*places, region=region)) != due:
            when = f" in {' and '.join(places)}" if places else ""
            when += "" if region is None else f" of region {' in '.join(reversed(region))}"
            told = f"rank {rank} issues {_listed(found)}{when}; due {why}: {_listed(due)}"
            raise Diverges(told, self._counted(due, rank, places, whole, region), COUNTED)

    def _counted(
        self, due: Counter[str], rank: int, places: tuple[Place, ...], whole: Counter[str], region: Region | None
    ) -> Measured | None:
        """What a script counts: recomputations' collectives, or those of the whole program; None if that shows no fault."""
        if places == ("recomputation",) and region is None:
            return Measured("recomputed", tuple(sorted(due.items())))
        return Measured("kernels", tuple(sorted(whole.items()))) if self.seen[rank].issued() != whole else None

    def in_one_order(self) -> None:
        """All ranks issue the same collectives, in the same order and at the same times."""
        if not (first := self.seen[0].collectives):
            raise ValueError(f"the program issues no collective:\n{self.program.source}")
        for answer in self.seen[1:]:
            for number, (one, other) in enumerate(zip_longest(first, answer.collectives), 1):
                if one != other:
                    told = f"collective {number}: rank 0 issues {one}, rank {answer.rank} {other}"
                    # A script compares the names alone.
                    shown = [each.name for each in first] != [each.name for each in answer.collectives]
                    raise Diverges(told, Measured("kernels") if shown else None, ORDER)

    def keeps_nothing(self) -> None:
        """Where the program notes all that it holds, nothing else that a region's function made is alive on any rank."""
        for answer in self.seen:
            if not answer.kept:
                raise ValueError(f"the program does not note what it holds:\n{self.program.source}")
            for label, count in answer.kept.items():
                if count:
                    told = f"rank {answer.rank}: at '{label}' {count} storages that regions made are alive; expected: 0"
                    raise Diverges(told, None, KEPT)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


@contextmanager
def on_rank(rank: int) -> Iterator[None]:
    """Name the rank in a verdict's detail."""
    try:
        yield
    except Judged as judged:
        judged.detail = f"rank {rank}: {judged.detail}"
        raise


@contextmanager
def unmeasured() -> Iterator[None]:
    """A verdict that a script of a few lines cannot measure again."""
    try:
        yield
    except Judged as judged:
        judged.measured = None
        raise


def judge(check: Callable[[RankedCase], None], case: RankedCase, *, recomputes: bool, gradients: bool) -> Outcome:
    """Judge one case by one law."""
    try:
        check(case)
        one = case.ranks[0]
    except Judged as judged:
        return Outcome(case.program, judged.verdict, judged.detail, "", judged.measured, case.units, judged.cause)
    vacuous = ""
    if gradients and one.plain.error is not None:
        vacuous = f"plain raises {type(one.plain.error).__name__}"
    elif gradients and any(answer.observation.vacuous for answer in case.plain):
        vacuous = "all gradients are zero"
    elif recomputes and not case.recomputed:
        vacuous = NOTHING_RECOMPUTED
    elif gradients and one.blurred:
        vacuous = f"rounding alone may change half of a gradient, of {one.terms} terms"
    return replace(Outcome(case.program, Verdict.AGREES, "", vacuous), units=case.units)
