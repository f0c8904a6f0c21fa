"""A legality checker that knows nothing of planners: it takes a schedule step by step and tracks what is in memory.

A step needs certain values; one that is not there makes the schedule illegal, and the step is named. Invariant: what is
stored at any time is the inputs in ``held``, what the stages in ``saved`` keep, the value that the last forward gave, and
from the end of the first forward on one gradient. The chain's input is the caller's and is not counted; its output
counts until its own stage's backward is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from impls.schedules.chain import Chain, require_chain
from impls.schedules.lowering import Action, Step, steps
from impls.schedules.plan import IllegalPlan, Plan


@dataclass(frozen=True)
class Account:
    """What a schedule costs.

    ``time`` is the sum over what ran, backward included; ``peak`` the most that was in memory during any step, without
    the chain's input; ``alive`` what forward leaves, its output included. ``calls`` counts forward calls of stages,
    ``kernels`` those that were not stopped before they did anything. ``inputs`` is the most inputs that were stored at
    once for stages that had yet to keep what they save, the chain's own among them: Griewank's checkpoints.
    """

    time: float
    peak: int
    alive: int
    calls: int
    kernels: int
    inputs: int


def interpret(plan: Plan, chain: Chain, *, early_stop: bool = True) -> Account:
    """What a plan costs on a chain when nested regions execute it.

    Raises IllegalPlan, which names the step that fails, for a plan that is no schedule for this chain. With
    ``early_stop`` the savings that count are those of ``Stage.stops_early``, and regions that end a region; a stage of
    several kernels may be stopped half way, which is not modelled, so there time is an upper bound. The peak is an upper bound
    where a region inside another begins with a stage that does not read its input: the input counts until the stage's backward
    is done, but really goes once the region has run again.
    """
    return interpret_steps(steps(plan, early_stop=early_stop), chain)


def interpret_steps(schedule: Iterable[Step], chain: Chain) -> Account:
    """What a schedule costs on a chain; it need not come from a plan. Raises IllegalPlan, which names the step that fails."""
    require_chain(chain)
    tape = _Tape(chain)
    number = 0
    for number, step in enumerate(schedule, start=1):
        if not isinstance(step, Step):
            raise TypeError(f"schedule holds {step!r}; it must be of Steps")
        try:
            tape.take(step)
        except _MissingError as missing:
            raise IllegalPlan(f"step {number}, {step}: {missing}") from None
    if tape.due >= 0:
        raise IllegalPlan(f"the schedule ends after step {number}, before the backward of stage {tape.due}")
    return Account(tape.time, tape.peak, tape.alive, tape.calls, tape.kernels, tape.inputs)


class _MissingError(Exception):
    """What a step needs is not there."""


class _Tape:
    """The state between two steps. Value v is the input of stage v and the output of stage v - 1."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.held: set[int] = set()
        self.saved: set[int] = set()
        self.running: int | None = 0
        self.due = len(chain) - 1
        self.done = not chain  # the first forward is over
        self.time: float = 0
        self.peak = self.alive = self.calls = self.kernels = self.inputs = 0

    def take(self, step: Step) -> None:
        if not 0 <= step.stage < len(self.chain):
            raise _MissingError(f"the chain has {len(self.chain)} stages, numbered from 0")
        if step.action is Action.BACK:
            self.backward(step.stage)
        else:
            self.forward(step.action, step.stage)

    def forward(self, action: Action, index: int) -> None:
        stage = self.chain[index]
        if not (self.running == index or index == 0 or index in self.held or self.remains(index)):
            raise _MissingError("its input is neither stored nor what the step before gave")
        if index in self.saved and action is not Action.PASS:
            raise _MissingError("what the stage saves for backward is stored already")
        keeps = action in (Action.KEEP, Action.CUT)
        if action is Action.PASS:
            self.running = index
        elif keeps and not stage.needs_input and index not in self.held:
            self.running = index  # for as long as the stage runs
        else:
            self.held.add(index)
            self.running = None
        self.inputs = max(self.inputs, len(self.held - self.saved - ({index} if keeps else set())))
        if action is Action.STOP:
            return
        self.calls += 1
        if action is Action.CUT and stage.stops_early:
            self.saved.add(index)
            self.running = None
            return
        new = stage.saved + stage.keeping_extra if keeps else stage.output + stage.passing_extra
        self.peak = max(self.peak, self.size() + new)
        if keeps:
            self.saved.add(index)
        self.running = None if action is Action.CUT else index + 1
        self.kernels += 1
        self.time += stage.forward
        if self.running == len(self.chain) and not self.done:
            self.alive, self.done = self.size(), True  # before there is a gradient

    def backward(self, index: int) -> None:
        stage = self.chain[index]
        self.running = None
        if not self.done:
            raise _MissingError("the first forward has not come to the end of the chain")
        if index != self.due:
            raise _MissingError(f"the gradient there is that for stage {self.due}")
        if index not in self.saved:
            raise _MissingError("what the stage saves for backward is not stored")
        self.peak = max(self.peak, self.size() + stage.backward_extra)
        self.time += stage.backward
        self.saved.remove(index)
        self.held.discard(index)
        self.due -= 1

    def remains(self, value: int) -> bool:
        """Whether the stage before keeps this value, its output, for itself."""
        return value - 1 in self.saved and self.chain[value - 1].needs_output

    def size(self) -> int:
        values = self.held | {stage + 1 for stage in self.saved if self.chain[stage].needs_output}
        if self.running is not None:
            values.add(self.running)
        size = sum(self.chain[value - 1].output for value in values if value > 0)
        size += sum(self.chain[stage].saved - self.chain[stage].output for stage in self.saved)
        if self.done and self.due >= 0:
            size += self.chain[self.due].gradient
        return size
