"""Plans: which stages of a chain keep what they save, and which lie in regions that drop it and run again.

A plan is a tuple of parts in the order of the chain. ``Keep(stage)`` runs a stage as plain autograd does. A ``Region`` is
checkpointed: of it only the input stays, and in backward its parts, a plan of their own, run again. So a tree says what
a checkpointing schedule says with a list of operations, and nested regions execute it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from impls.schedules.validation import require_int


@dataclass(frozen=True)
class Keep:
    """The stage with this index, counted from 0, keeps what its backward needs."""

    stage: int

    def __post_init__(self) -> None:
        require_int("stage", self.stage, least=0)


@dataclass(frozen=True)
class Region:
    """Parts of which only the input of the first stays until backward comes to them; then they run again as a plan."""

    parts: Plan


Part = Keep | Region
Plan = tuple[Part, ...]


class IllegalPlan(ValueError):
    """A plan that is no schedule for its chain."""


class Infeasible(ValueError):
    """No plan, or none that was tried, is within the budget; the message names the budget and the least that one needs."""


def kept(start: int, stop: int) -> Plan:
    """The stages from ``start`` up to ``stop``, each keeping what it saves."""
    return tuple(Keep(stage) for stage in range(start, stop))


def stages(plan: Plan) -> Iterator[int]:
    """The stages of a plan in the order in which its first forward runs them."""
    for _, part in _walk(plan):
        if isinstance(part, Keep):
            yield part.stage


def depth(plan: Plan) -> int:
    """How many regions lie inside each other at most."""
    return max((level + isinstance(part, Region) for level, part in _walk(plan)), default=0)


def text(plan: Plan) -> str:
    """The plan in one line: stages by number, regions in brackets, as in ``[0 1 [2]] 3``."""
    words: list[str] = []
    level = 0
    for at, part in _walk(plan):
        if at < level:
            words[-1] += "]" * (level - at)
        level = at
        if isinstance(part, Keep):
            words.append(str(part.stage))
        else:
            level += 1
            words.append("[")
    return (" ".join(words) + "]" * level).replace("[ ", "[")


def require_order(plan: Plan, count: int) -> None:
    """Raise unless a plan runs each of ``count`` stages once, in order, and is made of parts.

    Raises TypeError for what is not a tuple of Keep and Region, IllegalPlan for an empty region and for stages that are
    missing, doubled or out of order.
    """
    due = 0
    for _, part in _walk(plan):
        if isinstance(part, Region):
            if not part.parts:
                raise IllegalPlan(f"plan has an empty region before stage {due}; a region runs at least one stage")
        elif part.stage != due:
            raise IllegalPlan(f"plan runs stage {part.stage} where stage {due} is due; it must run 0 to {count - 1} in order")
        else:
            due += 1
    if due != count:
        raise IllegalPlan(f"plan runs {due} stages; the chain has {count}")


def _walk(plan: Plan) -> Iterator[tuple[int, Part]]:
    """Each part with the number of regions around it, a region before what is in it. Not recursive: plans may be deep."""
    pending: list[tuple[int, Iterator[Part]]] = [(0, iter(require_parts(plan)))]
    while pending:
        level, rest = pending[-1]
        part = next(rest, None)
        if part is None:
            pending.pop()
            continue
        yield level, part
        if isinstance(part, Region):
            pending.append((level + 1, iter(require_parts(part.parts))))


def require_parts(plan: Plan) -> Plan:
    """The plan itself. Raises TypeError for what is not a tuple of Keep and Region; what is inside regions is not looked at."""
    if not isinstance(plan, tuple):
        raise TypeError(
            f"plan is, or has inside, something of type {type(plan).__name__}; it must be a tuple of Keep and Region"
        )
    for part in plan:
        if not isinstance(part, Keep | Region):
            raise TypeError(f"plan holds {part!r}; it must be a tuple of Keep and Region")
    return plan
