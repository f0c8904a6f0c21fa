"""The peak of a step as a function of the regions that are checkpointed, from the trace of a plain one.

What a checkpointed region makes and saves is gone from its end until backward asks for it and the region runs again; what it
was passed stays alive in between. The bytes of each moment are linear in the choice, so an integer program can choose.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from reprise.model_check.budgets.memory_trace import FOREVER, MemoryTrace, RegionTime, Stored
from reprise.model_check.regions import Key

Term = tuple[Literal["all", "any"], frozenset[int]]  # holds if all, or any, of these groups of regions are checkpointed
Member = Mapping[Key, int]  # the group of each region


@dataclass(frozen=True)
class Moment:
    """The most bytes over some time: plain's, and what each term adds (or removes, below 0) if it holds."""

    plain: int
    terms: Mapping[Term, int]

    def bytes(self, chosen: Set[int]) -> int:
        """The bytes if these groups are checkpointed."""
        return self.plain + sum(size for term, size in self.terms.items() if holds(term, chosen))


@dataclass(frozen=True)
class Change:
    """Bytes that are added (or removed, below 0) after operator ``begin`` until ``end``, if a term holds."""

    term: Term
    size: int
    begin: int
    end: int


def holds(term: Term, chosen: Set[int]) -> bool:
    """Whether a term holds if these groups are checkpointed."""
    kind, groups = term
    return groups <= chosen if kind == "all" else bool(groups & chosen)


def predicted_peak(moments: Sequence[Moment], chosen: Set[int]) -> int:
    """The most bytes at any moment if these groups are checkpointed."""
    return max(one.bytes(chosen) for one in moments)


def moments_of(trace: MemoryTrace, member: Member, *, early_stop: bool) -> tuple[Moment, ...]:
    """The moments of a step. ``member`` has each region's group; with ``early_stop``, recomputations end at the last save."""
    changes = [*_freed(trace, member), *_kept(trace, member)]
    times = sorted({0, trace.time, *(one.begin for one in changes), *(min(one.end, trace.time) for one in changes)})
    between = [
        Moment(max(trace.alive[begin + 1 : end + 1]), _terms(one for one in changes if one.begin <= begin and end <= one.end))
        for begin, end in itertools.pairwise(times)
    ]
    return (*between, *_recomputations(trace, member, changes, early_stop=early_stop))


def _recomputations(trace: MemoryTrace, member: Member, changes: Sequence[Change], *, early_stop: bool) -> Iterator[Moment]:
    for key, region in trace.regions.items():
        if region.asked != FOREVER:
            at = region.asked
            again = Change(("any", frozenset({member[key]})), recomputed_bytes(trace, region, early_stop), at, at)
            there = [one for one in changes if one.begin <= at <= one.end]
            yield Moment(trace.alive[at], _terms([again, *there]))


def recomputed_bytes(trace: MemoryTrace, region: RegionTime, early_stop: bool) -> int:
    """The most bytes that a region's forward adds to those at its beginning."""
    end = region.last_save if early_stop else region.end
    return max(trace.alive[region.begin : end + 1]) - trace.alive[region.begin]


def _terms(changes: Iterator[Change] | Sequence[Change]) -> Counter[Term]:
    terms: Counter[Term] = Counter()
    for one in changes:
        terms[one.term] += one.size
    return terms


def freed_with(trace: MemoryTrace, one: Stored) -> frozenset[Key]:
    """The regions whose checkpointing, of all of them, frees a storage once they have run; none if it stays or is gone anyway.

    A region must have made and saved it, and nobody else may need it: what is saved outside of regions stays, and what is
    passed to another region is kept by that one.
    """
    regions = frozenset(key for key in one.saved_by if key is not None)
    if one.maker not in regions or None in one.saved_by or one.passed_to or one.died <= _end(trace, regions):
        return frozenset()
    return regions


def _end(trace: MemoryTrace, regions: Set[Key]) -> int:
    return max(trace.regions[key].end for key in regions)


def _freed(trace: MemoryTrace, member: Member) -> Iterator[Change]:
    for one in trace.stored:
        if regions := freed_with(trace, one):
            end = _end(trace, regions)
            asked = min(trace.regions[key].asked for key in regions)
            if asked > end:
                yield Change(("all", frozenset(member[key] for key in regions)), -one.size, end, min(asked, one.died))


def _kept(trace: MemoryTrace, member: Member) -> Iterator[Change]:
    """What a region was passed and plain would free before the region's backward."""
    for one in trace.stored:
        needed = [trace.regions[key] for key in one.passed_to if trace.regions[key].asked != FOREVER]
        asked = max((region.asked for region in needed), default=0)
        if one.died < asked:
            groups = frozenset(member[key] for key in one.passed_to if trace.regions[key].asked != FOREVER)
            yield Change(("any", groups), one.size, max(one.died, min(region.end for region in needed)), asked)
