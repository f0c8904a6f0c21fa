"""Schedules: programs whose forward may run several times, and the steps taken with the graphs that it gives.

``forward`` returns every tensor that is bound outside regions, and each step ends with a note of all that the program
holds: "held" while it holds a graph, else "empty". What else is alive there was kept by an implementation. Steps are
drawn so that plain takes them; "again" and "spent", over a graph that is freed or freed in part, may be refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from conformance.programs.program import Line, Op, Program, render
from conformance.programs.rewrites import ASIDE, after_each, bound, breakable, failing, with_asides
from conformance.programs.strategies import CORE, programs
from conformance.programs.sums import Order, Sums

# What a step may be. "whole" and "create-graph" ask for all outputs, "some", "inputs" and "grad" for asides; these all
# retain the graph; "backward" frees it, "part" frees a part of it.
ERRORS = ("error in forward", "error in backward")
KINDS = ("forward", "whole", "some", "part", "spent", "again", "drop", "inputs", "grad", "create-graph", *ERRORS)
ASKING = frozenset({"some", "part", "spent", "inputs", "grad"})  # kinds that ask for asides
WHOLE, PART, FREED = "whole", "part", "freed"

FAILING = """import contextlib
class Planned(ValueError): pass
class Interrupt(KeyboardInterrupt): pass
"""
FAIL = """armed = {{}}
def fail(after, error, call):
    armed[after] = error
    before = [None if leaf.grad is None else leaf.grad.clone() for leaf in {leaves}]
    with contextlib.suppress(RuntimeError, Planned, Interrupt):
        call()
    armed.clear()
    for leaf, grad in zip({leaves}, before): leaf.grad = grad"""


@dataclass(frozen=True)
class Schedule:
    """A program of which the body becomes ``forward``, and the lines of the steps; ``order`` is that of the steps' sums."""

    program: Program
    steps: tuple[str, ...]
    order: Order = Order.SAME

    @functools.cached_property
    def sums(self) -> Sums:
        """Each step may add a gradient to others."""
        own = self.program.sums
        return Sums(own.terms + len(self.steps), own.order.and_of(self.order))

    @functools.cached_property
    def source(self) -> str:
        fails = {step.split("'")[1] for step in self.steps if step.startswith("fail(")}
        program = self.program
        inside = [f"torch.manual_seed({program.seed})"]
        inside += [f"{leaf.name} = {leaf.code}" for leaf in program.leaves]
        inside.append(f"note('leaves', ({''.join(leaf.name + ', ' for leaf in program.leaves)}))")
        if fails:
            inside += FAIL.format(leaves=_list(self.leaves)).splitlines()
        body = after_each(program.body, lambda _, op: failing(op) if op.target in fails else None)
        inside += [
            "def forward():",
            *(f"    {line}" for line in render(body)),
            f"    return {', '.join(bound(program))},",
        ]
        inside += self.steps
        lines = ["import torch", "", *program.preamble, *(FAILING.splitlines() if fails else ())]
        return "\n".join([*lines, "def run(checkpoint, note, device):", *(f"    {line}" for line in inside)]) + "\n"

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(leaf.name for leaf in self.program.leaves if leaf.grad)


def watched(schedule: Schedule) -> Schedule:
    """The same schedule with a note "due" inside regions, where the gradient of an operator's result is there."""

    def due(region: str, op: Op) -> Line:
        noted = f"note('due {region} {op.target}')"
        return Line(f"if {{0}}.requires_grad: {{0}}.register_hook(lambda grad: {noted})", (op.target,))

    return replace(schedule, program=replace(schedule.program, body=after_each(schedule.program.body, due)))


def _list(names: Collection[str]) -> str:
    return f"[{', '.join(names)}]"


class _Planner:
    """Draws the steps of a schedule, and knows of each graph whether it is whole, freed in part, or freed."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], program: Program) -> None:
        self.draw, self.program = draw, program
        self.leaves = tuple(leaf.name for leaf in program.leaves if leaf.grad)
        names = bound(program)
        self.asides = [index for index, name in enumerate(names) if name.endswith(ASIDE)]
        self.outputs = [names.index(output) for output in program.outputs]
        self.graphs: dict[str, str] = {}
        self.lines: list[str] = []
        self.order = Order.SAME
        self.begun = self.steps = 0

    def pick(self, *states: str) -> str:
        return self.draw(st.sampled_from([graph for graph, state in self.graphs.items() if state in states]))

    def draws(self, values: Collection[Any]) -> list[Any]:
        return self.draw(st.lists(st.sampled_from(list(values)), min_size=1, unique=True))

    def possible(self, kind: str) -> bool:
        states = set(self.graphs.values())
        match kind:
            case "forward":
                return len(self.graphs) < 3
            case "error in forward":
                return True
            case "spent":
                return PART in states
            case "again":
                return FREED in states
            case "drop":
                return bool(states)
        return WHOLE in states and (kind not in ASKING or bool(self.asides))

    def asked(self, graph: str, outputs: Collection[int], options: str, inputs: Collection[str] | None = None) -> str:
        tensors = [f"{graph}[{index}]" for index in outputs]
        ones = _list([f"torch.ones_like({tensor})" for tensor in tensors])
        if inputs is None:
            return f"torch.autograd.backward({_list(tensors)}, {ones}{options})"
        return f"torch.autograd.grad({_list(tensors)}, {_list(inputs)}, {ones}, allow_unused=True{options})"

    def take(self, kind: str) -> None:
        """One step, and the note of what is held after it."""
        self.steps += 1
        getattr(self, kind.replace(" ", "_").replace("-", "_"))()
        self.lines.append(f"note('{'held' if self.graphs else 'empty'} {self.steps}', {_list(self.graphs)})")

    def gradients(self) -> None:
        self.lines.append(f"note('gradients {self.steps}', {_list([f'{leaf}.grad' for leaf in self.leaves])})")

    def forward(self) -> None:
        self.begun += 1
        graph = f"graph{self.begun}"
        self.graphs[graph] = WHOLE
        self.lines.append(f"{graph} = forward()")

    def some(self) -> None:
        self.lines.append(self.asked(self.pick(WHOLE), self.draws(self.asides), ", retain_graph=True"))
        self.gradients()

    def whole(self) -> None:
        self.lines.append(self.asked(self.pick(WHOLE), self.outputs, ", retain_graph=True"))
        self.gradients()

    def inputs(self) -> None:
        chosen = _list(self.draws(self.leaves))
        self.lines.append(self.asked(self.pick(WHOLE), self.draws(self.asides), f", retain_graph=True, inputs={chosen}"))
        self.gradients()

    def grad(self) -> None:
        text = self.asked(self.pick(WHOLE), self.draws(self.asides), ", retain_graph=True", self.draws(self.leaves))
        self.lines.append(f"note('grad {self.steps}', {text})")

    def create_graph(self) -> None:
        text = self.asked(self.pick(WHOLE), self.outputs, ", create_graph=True", self.leaves)
        self.order = Order.SAME_ON_CPU
        self.lines.append(f"note('first order {self.steps}', {text})")

    def backward(self) -> None:
        graph = self.pick(WHOLE)
        self.graphs[graph] = FREED
        self.lines.append(self.asked(graph, self.outputs, ""))
        self.gradients()

    def part(self) -> None:
        graph = self.pick(WHOLE)
        self.graphs[graph] = PART
        self.lines.append(self.asked(graph, self.draws(self.asides), ""))
        self.gradients()

    def spent(self) -> None:
        self.attempt(self.asked(self.pick(PART), self.draws(self.asides), ""))

    def again(self) -> None:
        self.attempt(self.asked(self.pick(FREED), self.outputs, ""))

    def attempt(self, call: str) -> None:
        """A backward that may be refused. How far it got before it was is of no concern: gradients start anew."""
        self.lines += ["try:", f"    {call}", f"    note('attempt {self.steps}', 'a value')"]
        self.lines += ["except RuntimeError:", f"    note('attempt {self.steps}', 'raised')"]
        self.lines.append(f"for leaf in {_list(self.leaves)}: leaf.grad = None")

    def drop(self) -> None:
        graph = self.pick(WHOLE, PART, FREED)
        del self.graphs[graph]
        self.lines.append(f"del {graph}")

    def error_in_forward(self) -> None:
        self.lines.append(f"fail({self.failure()}, forward)")

    def error_in_backward(self) -> None:
        call = self.asked(self.pick(WHOLE), self.outputs, ", retain_graph=True")
        self.lines.append(f"fail({self.failure()}, lambda: {call})")

    def failure(self) -> str:
        target = self.draw(st.sampled_from(breakable(self.program)))
        return f"'{target}', {self.draw(st.sampled_from(('Planned', 'Interrupt')))}"


def _bodies(sometimes: Collection[str], depth: int, asides: bool) -> st.SearchStrategy[Program]:
    """Programs in which an outermost region saves, under plain, a tensor that it makes and does not return."""
    drawn = programs(always=["saves-hidden"], sometimes=sometimes, depth=depth)
    return drawn.map(with_asides) if asides else drawn


@st.composite
def schedules(
    draw: Any,
    kinds: Collection[str],
    *,
    steps: int = 4,
    drop: bool = False,
    sometimes: Collection[str] = CORE,
    depth: int = 2,
) -> Schedule:
    """Forward, then up to ``steps`` steps of the given kinds, at least one; then a backward that frees a graph.

    With ``drop`` all graphs are dropped at the end, whether or not they are freed.
    """
    asides = ASKING.issuperset(kinds) or (not ASKING.isdisjoint(kinds) and draw(st.booleans()))
    planner = _Planner(draw, draw(_bodies(sometimes, depth, asides)))
    planner.take("forward")
    for _ in range(draw(st.integers(1, steps))):
        possible = [kind for kind in KINDS if kind in kinds and planner.possible(kind)]
        if possible:
            planner.take(draw(st.sampled_from(possible)))
    if not planner.possible("backward"):
        planner.take("forward")
    planner.take("backward")
    while drop and planner.graphs:
        planner.take("drop")
    return Schedule(planner.program, tuple(planner.lines), planner.order)


@st.composite
def exactly(draw: Any, *kinds: str, sometimes: Collection[str] = CORE, depth: int = 2) -> Schedule:
    """Schedules that take these steps in this order."""
    planner = _Planner(draw, draw(_bodies(sometimes, depth, not ASKING.isdisjoint(kinds))))
    for kind in kinds:
        planner.take(kind)
    return Schedule(planner.program, tuple(planner.lines), planner.order)
