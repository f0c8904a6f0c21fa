"""Schedules: programs whose forward may run several times, and the steps taken with the graphs that it gives.

``forward`` returns every tensor that is bound outside regions, and each step ends with a note of all that the program
holds: "held" while it holds a graph, else "empty". Anything else that is alive at a note was kept by the implementation. Steps
are drawn so that plain can take them; only "again" and "spent", over a graph that is freed or partly freed, may be refused.

This is not a ``RuleBasedStateMachine``, which takes its steps while they are drawn, and cannot be a part of a strategy. Here a
schedule is a program, which is drawn once, printed, and run by plain and by every implementation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from conformance.programs.backward_calls import Request, listed
from conformance.programs.generator.rewrites import after_each, asides, bound, breakable, failing, with_asides
from conformance.programs.notes import Note, Role
from conformance.programs.program import Line, Noted, Op, Program, Step, gradients, render
from conformance.programs.strategies import CORE, programs
from conformance.programs.sums import Order, Sums

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
class Failure:
    """A call, as text, of which an operator, known by its target, raises an error of the program's own."""

    target: str
    error: str
    call: str

    @property
    def code(self) -> str:
        return f"fail('{self.target}', {self.error}, {self.call})"


@dataclass(frozen=True)
class Schedule:
    """A program whose body becomes ``forward``, and the steps; ``order`` is that of the steps' sums."""

    program: Program
    steps: tuple[Step | Failure, ...]
    order: Order = Order.SAME

    @functools.cached_property
    def sums(self) -> Sums:
        """Each step may add a gradient to others."""
        own = self.program.sums
        return Sums(own.terms + len(self.steps), own.order.and_of(self.order))

    @functools.cached_property
    def source(self) -> str:
        return self.text("checkpoint")

    def text(self, subject: str, *, imports: Collection[str] = (), prepared: Collection[str] = (), context: str = "") -> str:
        """The program's text, about ``subject``, with ``prepared`` lines before it and a context around each forward."""
        fails = {step.target for step in self.steps if isinstance(step, Failure)}
        program = self.program
        inside = [*prepared, f"torch.manual_seed({program.seed})"]
        inside += [f"{leaf.name} = {leaf.code}" for leaf in program.leaves]
        inside.append(Noted(Note(Role.LEAVES), f"({''.join(leaf.name + ', ' for leaf in program.leaves)})").code)
        if fails:
            inside += FAIL.format(leaves=listed(self.leaves)).splitlines()
        body = after_each(program.body, lambda _, op: failing(op) if op.target in fails else None)
        forward = [f"with {context}:", *(f"    {line}" for line in render(body))] if context else render(body)
        forward.append(f"return {', '.join(bound(program))},")
        inside += ["def forward():", *(f"    {line}" for line in forward), *(step.code for step in self.steps)]
        lines = ["import torch", "", *program.preamble, *(FAILING.splitlines() if fails else ()), *imports]
        return "\n".join([*lines, f"def run({subject}, note, device):", *(f"    {line}" for line in inside)]) + "\n"

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(leaf.name for leaf in self.program.leaves if leaf.grad)


def watched(schedule: Schedule) -> Schedule:
    """The same schedule with a note "due" when the gradient of an operator's result inside a region arrives."""

    def due(region: str, op: Op) -> Line:
        noted = Noted(Note(Role.DUE, (region, op.target)))
        return Line(f"if {{0}}.requires_grad: {{0}}.register_hook(lambda grad: {noted.code})", (op.target,))

    return replace(schedule, program=replace(schedule.program, body=after_each(schedule.program.body, due)))


class _Planner:
    """Draws the steps of a schedule, and follows whether each graph is whole, partly freed, or freed."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], program: Program) -> None:
        self.draw, self.program = draw, program
        self.leaves = tuple(leaf.name for leaf in program.leaves if leaf.grad)
        names = bound(program)
        self.asides = [names.index(name) for name in asides(program)]
        self.outputs = [names.index(output) for output in program.outputs]
        self.graphs: dict[str, str] = {}
        self.taken: list[Step | Failure] = []
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

    def asked(self, graph: str, outputs: Collection[int], **options: Any) -> Request:
        return Request(tuple(f"{graph}[{index}]" for index in outputs), **options)

    def note(self, role: Role, value: str, *words: str) -> None:
        self.taken.append(Noted(Note(role, (*words, str(self.steps))), value))

    def take(self, kind: str) -> None:
        """Take one step, and note what is held after it."""
        self.steps += 1
        _STEPS[kind](self)
        self.note(Role.HELD if self.graphs else Role.EMPTY, listed(self.graphs))

    def add(self, request: Request) -> None:
        """Ask for gradients, which are added to those of leaves, and note the sums."""
        self.taken += [Line(request.call), gradients(str(self.steps), self.program.leaves)]

    def forward(self) -> None:
        self.begun += 1
        graph = f"graph{self.begun}"
        self.graphs[graph] = WHOLE
        self.taken.append(Line(f"{graph} = forward()"))

    def some(self) -> None:
        self.add(self.asked(self.pick(WHOLE), self.draws(self.asides), retain=True))

    def whole(self) -> None:
        self.add(self.asked(self.pick(WHOLE), self.outputs, retain=True))

    def inputs(self) -> None:
        chosen = tuple(self.draws(self.leaves))
        self.add(self.asked(self.pick(WHOLE), self.draws(self.asides), retain=True, inputs=chosen))

    def grad(self) -> None:
        graph, outputs = self.pick(WHOLE), self.draws(self.asides)
        self.note(Role.GRAD, self.asked(graph, outputs, inputs=tuple(self.draws(self.leaves)), retain=True, gives=True).call)

    def create_graph(self) -> None:
        request = self.asked(self.pick(WHOLE), self.outputs, inputs=self.leaves, create_graph=True, gives=True)
        self.order = Order.SAME_ON_CPU
        self.note(Role.FIRST, request.call, "order")

    def backward(self) -> None:
        graph = self.pick(WHOLE)
        self.graphs[graph] = FREED
        self.add(self.asked(graph, self.outputs))

    def part(self) -> None:
        graph = self.pick(WHOLE)
        self.graphs[graph] = PART
        self.add(self.asked(graph, self.draws(self.asides)))

    def spent(self) -> None:
        self.attempt(self.asked(self.pick(PART), self.draws(self.asides)))

    def again(self) -> None:
        self.attempt(self.asked(self.pick(FREED), self.outputs))

    def attempt(self, request: Request) -> None:
        """A backward that may be refused. How far it got does not matter, as gradients are reset afterwards."""
        came, raised = (Noted(Note(Role.ATTEMPT, (str(self.steps),)), repr(how)).code for how in ("a value", "raised"))
        lines = ["try:", f"    {request.call}", f"    {came}", "except RuntimeError:", f"    {raised}"]
        self.taken += map(Line, [*lines, f"for leaf in {listed(self.leaves)}: leaf.grad = None"])

    def drop(self) -> None:
        graph = self.pick(WHOLE, PART, FREED)
        del self.graphs[graph]
        self.taken.append(Line(f"del {graph}"))

    def error_in_forward(self) -> None:
        self.fail("forward")

    def error_in_backward(self) -> None:
        self.fail(f"lambda: {self.asked(self.pick(WHOLE), self.outputs, retain=True).call}")

    def fail(self, call: str) -> None:
        target = self.draw(st.sampled_from(breakable(self.program)))
        self.taken.append(Failure(target, self.draw(st.sampled_from(("Planned", "Interrupt"))), call))


# The kinds of steps. "whole" and "create-graph" ask for all outputs; "some", "inputs" and "grad" for asides. These all retain
# the graph; "backward" frees it, and "part" frees a part of it.
_STEPS: dict[str, Callable[[_Planner], None]] = {
    "forward": _Planner.forward,
    "whole": _Planner.whole,
    "some": _Planner.some,
    "part": _Planner.part,
    "spent": _Planner.spent,
    "again": _Planner.again,
    "drop": _Planner.drop,
    "inputs": _Planner.inputs,
    "grad": _Planner.grad,
    "create-graph": _Planner.create_graph,
    "error in forward": _Planner.error_in_forward,
    "error in backward": _Planner.error_in_backward,
    "backward": _Planner.backward,
}
KINDS = tuple(kind for kind in _STEPS if kind != "backward")  # that may be drawn; a schedule ends with "backward"


def _bodies(sometimes: Collection[str], depth: int, more: bool) -> st.SearchStrategy[Program]:
    """Programs in which an outermost region saves, under plain, a tensor that it makes and does not return."""
    drawn = programs(always=["saves-hidden"], sometimes=sometimes, depth=depth)
    return drawn.map(with_asides) if more else drawn


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
    more = ASKING.issuperset(kinds) or (not ASKING.isdisjoint(kinds) and draw(st.booleans()))
    planner = _Planner(draw, draw(_bodies(sometimes, depth, more)))
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
    return Schedule(planner.program, tuple(planner.taken), planner.order)


@st.composite
def exactly(draw: Any, *kinds: str, sometimes: Collection[str] = CORE, depth: int = 2) -> Schedule:
    """Schedules that take these steps in this order."""
    planner = _Planner(draw, draw(_bodies(sometimes, depth, not ASKING.isdisjoint(kinds))))
    for kind in kinds:
        planner.take(kind)
    return Schedule(planner.program, tuple(planner.taken), planner.order)
