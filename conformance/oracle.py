"""What a program costs, predicted from the rules of nesting alone. No implementation is looked at, and nothing is run.

:func:`trace` follows forward: which values there are, what each node of the graph saves and in which region.
:func:`costs` replays the driver's requests on that: what is recomputed, how far, and what is alive when a node is due.
Autograd is taken to run the nodes that a request needs in descending order of their creation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from conformance.programs import Line, Op, Program, Region, Statement
from conformance.requests import Request, requests

# The kernel of an operator, and what its node saves: operands before the kernel runs, or its result after it.
# "crosswise": each operand, if the other one requires grad.
OPERATORS = {
    "torch.sin({0})": ("sin", "operand"),
    "torch.cos({0})": ("cos", "operand"),
    "torch.tanh({0})": ("tanh", "result"),
    "torch.neg({0})": ("neg", "nothing"),
    "{0} * {1}": ("mul", "crosswise"),
    "{0} + {1}": ("add", "nothing"),
    "torch.sub({0}, {1}, alpha=2)": ("sub", "nothing"),
    "{0} @ {1}": ("mm", "crosswise"),
}


@dataclass(eq=False)
class Value:
    """A tensor of forward, and the node that made it: the values it was made from, and what it saved."""

    name: str
    grad: bool
    frame: Frame | None = None
    kernel: str = ""
    sources: tuple[Value, ...] = ()
    slots: list[Slot] = field(default_factory=list)


@dataclass(eq=False)
class Slot:
    """A tensor saved in a frame: for a node, before or after its kernel, or as an input of the region called next.

    ``name`` is what the tensor is called there.
    """

    frame: Frame
    value: Value
    name: str
    owner: Value | Frame
    late: bool = False


@dataclass(eq=False)
class Frame:
    """One call of a region in forward. ``steps`` is what its function does: save, run a kernel, call a region.

    The frame without a parent is the program outside all regions: what is saved there is kept.
    """

    name: str
    parent: Frame | None
    inputs: list[Slot] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    steps: list[Slot | Value | Frame] = field(default_factory=list)
    visible: set[Value] = field(default_factory=set)


@dataclass
class Trace:
    """Forward: every value in the order of creation, by name, and the outermost frame."""

    values: list[Value]
    named: dict[str, Value]
    root: Frame


def trace(program: Program) -> Trace:
    """Follow the program's forward. A plain line is taken to cost nothing.

    Raises ValueError for an operator whose costs are not known, a block, or a value of another region that is read
    through a closure.
    """
    leaves = [Value(leaf.name, leaf.grad) for leaf in program.leaves]
    made = Trace(leaves, {leaf.name: leaf for leaf in leaves}, Frame("", None))
    _follow(program.body, made.root, made)
    return made


def _follow(body: Iterable[Statement], frame: Frame, made: Trace) -> None:
    for statement in body:
        if isinstance(statement, Op):
            _operator(statement, frame, made)
        elif isinstance(statement, Region):
            _call(statement, frame, made)
        elif not isinstance(statement, Line):
            raise ValueError(f"the oracle knows no costs of {type(statement).__name__}; it knows operators, regions and lines")


def _operator(op: Op, frame: Frame, made: Trace) -> None:
    if op.template not in OPERATORS:
        raise ValueError(f"the oracle knows no costs of {op.template!r}; it knows {sorted(OPERATORS)}")
    kernel, saves = OPERATORS[op.template]
    operands = tuple(made.named[name] for name in op.args)
    for operand in operands:
        if operand.frame is not None and operand not in frame.visible:
            raise ValueError(f"{op.code!r} in {frame.name!r} reads {operand.name!r} through a closure, which the oracle does not follow")
    result = Value(op.target, any(operand.grad for operand in operands), frame, kernel, operands)
    for operand, name, other in zip(operands, op.args, operands[::-1], strict=True):
        if result.grad and (saves == "operand" or (saves == "crosswise" and other.grad)):
            _save(Slot(frame, operand, name, result))
    frame.steps.append(result)
    if result.grad and saves == "result":
        _save(Slot(frame, result, op.target, result, late=True))
    made.values.append(result)
    made.named[op.target] = result
    frame.visible.add(result)


def _save(slot: Slot) -> None:
    slot.frame.slots.append(slot)  # rule 1: the innermost region's
    slot.frame.steps.append(slot)
    if isinstance(slot.owner, Value):
        slot.owner.slots.append(slot)


def _call(region: Region, frame: Frame, made: Trace) -> None:
    inner = Frame(region.name, frame)
    passed = [made.named[name] for name in region.passed]
    for value, name in {made.named[name]: name for name in region.passed}.items():
        inner.inputs.append(Slot(frame, value, name, inner))
        _save(inner.inputs[-1])  # rule 2: saved by the parent, each once
    frame.steps.append(inner)
    inside = [name for name, _ in region.unpack] or region.parameters[-len(passed) :]
    made.named.update(zip(inside, passed, strict=True))
    inner.visible.update(passed)
    _follow(region.body, inner, made)
    for (target, _), text in zip(region.targets, region.returned, strict=True):
        if text not in made.named:
            raise ValueError(f"region {region.name!r} returns {text!r}, which the oracle does not follow; it follows tensors by name")
        made.named[target] = made.named[text]
        frame.visible.add(made.named[target])


@dataclass(frozen=True)
class Costs:
    """Counts over forward and all requests.

    ``calls`` of each region's function; ``begun`` and ``kernels``: operators that were called, and those of them that
    ran to their end; ``saved`` by region what forward saved there, by the names used there; ``alive`` for each node that is due, in
    the order of execution, how many tensors made inside regions exist at that moment, before it unpacks its own.
    """

    calls: Counter[str]
    begun: Counter[str]
    kernels: Counter[str]
    saved: dict[str, tuple[str, ...]]
    alive: tuple[tuple[str, int], ...]


def costs(program: Program, early_stop: bool = True) -> Costs:
    """What the program costs: its forward and all requests of its driver. Raises ValueError as :func:`trace` does."""
    made = trace(program)
    replay = _Replay(made, early_stop)
    for request in requests(program):
        replay.backward(request)
    frames = [made.root, *_frames(made.root)]
    saved = {frame.name: tuple(slot.name for slot in frame.slots) for frame in frames}
    return Costs(replay.calls, replay.begun + replay.kernels, replay.kernels, saved, tuple(replay.alive))


def _frames(frame: Frame) -> list[Frame]:
    inner = [step for step in frame.steps if isinstance(step, Frame)]
    return [*inner, *(deeper for one in inner for deeper in _frames(one))]


def _reached(values: Iterable[Value]) -> set[Value]:
    found: set[Value] = set()
    queue = [value for value in values if value.grad]
    while queue:
        value = queue.pop()
        if value not in found:
            found.add(value)
            queue += [source for source in value.sources if source.grad]
    return found


Unit = tuple[Value, int]  # a tensor: the value that it is a copy of, and the run that made it, 0 for forward


class _Replay:
    """Counts while it replays requests one after the other."""

    def __init__(self, made: Trace, early_stop: bool) -> None:
        self.made, self.early_stop = made, early_stop
        self.calls: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self.kept: dict[Frame, dict[Slot, Unit]] = {}
        self.alive: list[tuple[str, int]] = []
        self.runs = 0
        outside = made.root.visible
        self.held = {(value, 0) for value in outside if value.frame is not made.root}
        self.released = set(made.values) - _reached(outside)
        self.whole(made.root)

    def whole(self, frame: Frame) -> None:
        """The function of a frame runs to its end, outside backward or inside a recomputation of its parent."""
        if frame.parent is not None:
            self.calls[frame.name] += 1
        for step in frame.steps:
            if isinstance(step, Value):
                self.kernels[step.kernel] += 1
            elif isinstance(step, Frame):
                self.whole(step)

    def living(self, slot: Slot) -> bool:
        if isinstance(slot.owner, Value):
            return slot.owner not in self.released
        return any(self.living(inner) for inner in slot.owner.slots)

    def recompute(self, frame: Frame) -> None:
        given = {slot.value: self.unpack(slot) for slot in frame.inputs}  # rule 2: recomputes the parent first
        wanted = [slot for slot in frame.slots if self.living(slot)]
        kept = self.kept[frame] = {}
        self.runs += 1
        self.calls[frame.name] += 1
        for step in frame.steps:
            if isinstance(step, Value):
                self.kernels[step.kernel] += 1
            elif isinstance(step, Frame):
                self.whole(step)  # rule 3: a region met on the way saves for itself, and nobody asks it for that
            elif self.living(step):
                kept[step] = given.get(step.value, (step.value, self.runs if step.value.frame else 0))
                if self.early_stop and step is wanted[-1]:  # rule 5
                    if isinstance(step.owner, Value) and not step.late:
                        self.begun[step.owner.kernel] += 1
                    return

    def unpack(self, slot: Slot) -> Unit:
        if slot.frame.parent is None:
            return slot.value, 0
        if slot.frame not in self.kept:
            self.recompute(slot.frame)
        return self.kept[slot.frame].pop(slot)  # rule 4: it dies as it is unpacked

    def existing(self) -> int:
        inside = {unit for kept in self.kept.values() for unit in kept.values() if unit[0].frame not in (None, self.made.root)}
        return len(inside | self.held)

    def backward(self, request: Request) -> None:
        due = _reached(self.made.named[name] for name in request.outputs)
        if request.inputs is not None:
            wanted = {self.made.named[name] for name in request.inputs}
            due = {value for value in due if _reached([value]) & wanted}
        for value in reversed(self.made.values):
            if value in due and value.sources:
                self.alive.append((value.name, self.existing()))
                for slot in value.slots:
                    self.unpack(slot)
                if not request.retain:
                    self.released.add(value)
        self.kept.clear()  # rule 4: what was not unpacked dies with its backward
