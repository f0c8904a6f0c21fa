"""A program's forward, followed without running it: its values, and what is saved where (rules 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from conformance.programs.generator.operators import (
    COS,
    DIFFERENCE,
    MATRIX_PRODUCT,
    NEGATIVE,
    PRODUCT,
    SIN,
    SUM,
    TANH,
    Operator,
    uncounted,
)
from conformance.programs.program import Line, Noted, Op, Program, Region, Statement

Costs = tuple[str, tuple[str, ...]]
# The kernel of an operator, and what its node saves, in this order: operands, before the kernel runs; its results, after that.
# "crosswise": each operand, if the other one requires grad.
OPERATORS: dict[Operator, Costs] = {
    SIN: ("sin", ("operands",)),
    COS: ("cos", ("operands",)),
    TANH: ("tanh", ("result",)),
    NEGATIVE: ("neg", ()),
    PRODUCT: ("mul", ("crosswise",)),
    SUM: ("add", ()),
    DIFFERENCE: ("sub", ()),
    MATRIX_PRODUCT: ("mm", ("crosswise",)),
}
# Operators whose last saved tensor requires no grad, whatever their operands: a "constant" that is made before the kernel runs,
# or a "statistic" that the kernel returns besides its result.
SAVING_CONSTANTS: dict[Operator, Costs] = {
    uncounted("torch.nn.functional.layer_norm({0}, {0}.shape[1:])"): (
        "native_layer_norm",
        ("operands", "statistic", "statistic"),
    ),
    uncounted("torch.nn.functional.max_pool1d({0}, 1)"): ("max_pool2d_with_indices", ("operands", "statistic")),
    uncounted("torch.nn.functional.embedding(torch.zeros_like({0}[0], dtype=torch.long), {0})"): ("embedding", ("constant",)),
    uncounted("torch.where({0} > 0, {0}, {1})"): ("where", ("constant",)),
    uncounted("torch.nn.functional.mse_loss({0}, {1}, reduction='none')"): ("mse_loss", ("operands",)),
}
_COSTS = {operator.template: cost for operator, cost in (OPERATORS | SAVING_CONSTANTS).items()}


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
    """Forward: every value in the order of creation, the same by name, and every frame, outer ones first."""

    values: list[Value]
    named: dict[str, Value]
    frames: list[Frame]


def trace(program: Program) -> Trace:
    """Follow the program's forward. A note and a plain line are taken to cost nothing.

    Raises ValueError for an operator whose costs are not known, a block, or a value of another region that is read
    through a closure.
    """
    leaves = [Value(leaf.name, leaf.grad) for leaf in program.leaves]
    made = Trace(leaves, {leaf.name: leaf for leaf in leaves}, [Frame("", None)])
    _follow(program.body, made.frames[0], made)
    return made


def _follow(body: Iterable[Statement], frame: Frame, made: Trace) -> None:
    for statement in body:
        if isinstance(statement, Op):
            _operator(statement, frame, made)
        elif isinstance(statement, Region):
            _call(statement, frame, made)
        elif not isinstance(statement, Line | Noted):
            raise ValueError(f"the oracle knows no costs of a {type(statement).__name__}, only of Op, Region and Line")


def _operator(op: Op, frame: Frame, made: Trace) -> None:
    if op.template not in _COSTS:
        raise ValueError(f"the oracle knows no costs of {op.template!r}; it knows {sorted(_COSTS)}")
    kernel, saves = _COSTS[op.template]
    operands = tuple(made.named[name] for name in op.args)
    for operand in operands:
        if operand.frame is not None and operand not in frame.visible:
            raise ValueError(f"{op.code!r} in {frame.name!r} reads {operand.name!r} through a closure; only leaves may be")
    result = Value(op.target, any(operand.grad for operand in operands), frame, kernel, operands)
    for late in (False, True):
        for what in saves if result.grad else ():
            for value, name in _saved(what, op, operands, result):
                if late is (what in ("result", "statistic")):
                    _save(Slot(frame, value, name, result, late))
        if not late:
            frame.steps.append(result)
    made.values.append(result)
    made.named[op.target] = result
    frame.visible.add(result)


def _saved(what: str, op: Op, operands: tuple[Value, ...], result: Value) -> list[tuple[Value, str]]:
    """The tensors that a node saves, with the names that they have there."""
    if what == "result":
        return [(result, op.target)]
    if what in ("constant", "statistic"):
        return [(Value(f"a {what} of {op.target}", False, result.frame), f"a {what} of {op.target}")]
    pairs = zip(operands, op.args, operands[::-1], strict=True)
    return [(operand, name) for operand, name, other in pairs if what == "operands" or other.grad]


def _save(slot: Slot) -> None:
    slot.frame.slots.append(slot)  # rule 1: the innermost region's
    slot.frame.steps.append(slot)
    if isinstance(slot.owner, Value):
        slot.owner.slots.append(slot)


def _call(region: Region, frame: Frame, made: Trace) -> None:
    inner = Frame(region.name, frame)
    made.frames.append(inner)
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
            raise ValueError(f"region {region.name!r} returns {text!r}; the oracle follows only names of tensors")
        made.named[target] = made.named[text]
        frame.visible.add(made.named[target])
