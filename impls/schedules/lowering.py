"""A plan as the list of steps that nested regions take when they execute it, forward and then backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from impls.schedules.plan import IllegalPlan, Keep, Part, Plan, Region, require_parts, stages


class Action(StrEnum):
    """What is done with a stage. The first three and the last are F_all, F_ck, F_none and B of Beaumont et al. 2019."""

    KEEP = "forward that keeps all"
    STORE = "forward that keeps the input"
    PASS = "forward that keeps nothing"
    CUT = "forward that keeps all and is stopped once it has"
    STOP = "stop that keeps the input"
    BACK = "backward"


@dataclass(frozen=True)
class Step:
    """One action on one stage."""

    action: Action
    stage: int

    def __post_init__(self) -> None:
        if not isinstance(self.action, Action):
            raise TypeError(f"action is {self.action!r}; it must be an Action")

    def __str__(self) -> str:
        return f"{self.action} of stage {self.stage}"


def steps(plan: Plan, *, early_stop: bool = True) -> Iterator[Step]:
    """The steps of one forward and backward, under the rules of nested regions (design rules 1 to 5).

    With ``early_stop``, a recomputation stops at the last tensor that it has to bring: at the input of its last part if
    that is a region, inside its last stage if that is kept. Raises TypeError for what is no plan, IllegalPlan for an
    empty region.
    """
    require_parts(plan)
    yield from _forward(plan, stops=False)
    pending: list[Part] = list(plan)
    while pending:
        part = pending.pop()
        if isinstance(part, Keep):
            yield Step(Action.BACK, part.stage)
        else:
            yield from _forward(part.parts, stops=early_stop)
            pending += part.parts


def _forward(plan: Plan, *, stops: bool) -> Iterator[Step]:
    last = len(plan) - 1
    for index, part in enumerate(plan):
        stopped = stops and index == last
        if isinstance(part, Keep):
            yield Step(Action.CUT if stopped else Action.KEEP, part.stage)
        else:
            yield from _pass(part, stopped=stopped)


def _pass(region: Region, *, stopped: bool) -> Iterator[Step]:
    if not region.parts:
        raise IllegalPlan("plan has an empty region; a region runs at least one stage")
    for index, stage in enumerate(stages(region.parts)):
        if stopped:
            yield Step(Action.STOP, stage)
            return
        yield Step(Action.PASS if index else Action.STORE, stage)
