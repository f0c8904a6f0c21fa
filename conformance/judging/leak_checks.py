"""What is alive at the notes of a run, and what should not be."""

from __future__ import annotations

import json
from collections import Counter

from conformance.judging.judge import Case, Observation
from conformance.judging.verdicts import Diverges, Measured
from conformance.meters.counters import keeps_growing
from conformance.meters.meter import Moment, Objects, Storages
from conformance.programs.notes import Role


def nothing_kept(case: Case) -> Observation:
    """The run equals plain's, and whenever the program notes what it holds, nothing else is alive."""
    return _run(case, (Role.HELD, Role.EMPTY, Role.END))


def all_freed(case: Case) -> Observation:
    """The run equals plain's, and whenever the program holds no graph, nothing of any graph is alive."""
    return _run(case, (Role.EMPTY, Role.END))


def _run(case: Case, where: tuple[Role, ...]) -> Observation:
    storages = Storages()
    case.seen = case.run(storages)
    case.equals_plain()
    for moment in [*storages.moments, storages.end()]:
        if moment.note.role in where and moment.kept:
            raise Diverges(_told(moment), Measured("alive", ((moment.label, 0),)))
    return case.seen


def _told(moment: Moment) -> str:
    makers = ", ".join(sorted({made.region or "no region" for made in moment.kept}))
    count = len(moment.kept)
    return f"at '{moment.label}' {count} storages are alive, made in {makers}, that the program does not hold; expected: 0"


def no_growth(case: Case) -> None:
    """From the third note "step" on, the number of Python objects does not keep growing.

    All steps of a program are alike: if one leaves objects behind, the others do, too, and the number rises again and again. If
    it rises only once, another thread of the process has made an object: a thread that waits with a limit makes a lock each
    time.
    """
    case.seen  # noqa: B018 - objects that are made only once are made here
    growth, types = _growth(case)
    if keeps_growing(growth):
        told = f"from step to step the number of objects changes by {growth}{types}; expected: not at all"
        raise Diverges(told, Measured("objects"))


def _growth(case: Case) -> tuple[list[int], str]:
    """How many more objects there are than at the third step, and the types of the additional ones at the last."""
    objects = Objects()
    case.run(objects)
    counts = objects.counts[2:]
    more = (_types(objects, -1) - _types(objects, 2)).most_common(3) if counts else []
    return [count - counts[0] for count in counts], "".join(f", {name} by {count}" for name, count in more)


def _types(objects: Objects, step: int) -> Counter[str]:
    return Counter(json.loads(objects.types[step]))
