"""``Author``, the writer of one program: draws operators, regions and what features demand, statement by statement.

Every value of a body is computed from the one before, so that everything contributes to the outputs, except for arguments of
functions that read something else instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from conformance.programs.generator.containers import CONTAINERS, UNUSUAL_CONTAINERS
from conformance.programs.generator.layers import FUNCTIONS, Layer
from conformance.programs.generator.operators import (
    CONJUGATES,
    MODULE_TERMS,
    OPERATORS,
    PRODUCT,
    SAVE_INPUTS,
    SAVE_MANY,
    SIN,
    Operator,
    mixture,
)
from conformance.programs.generator.rewrites import hidden
from conformance.programs.notes import Note, Role
from conformance.programs.program import Block, Line, Noted, Op, Region, Statement, mentioned
from conformance.programs.sums import Order

T = TypeVar("T")
NAMES = ("input", "self", "mask", "args", "kwargs", "fn", "func", "options")  # of arguments, which others may call their own so
ALIASES = ("{0}.detach()", "{0}.view_as({0})", "{0}[:]")


@dataclass
class Scope:
    """Names that a body can read, and those that require grad; the last, the current value, always does.

    ``unlike`` is a tensor of another shape or dtype, if there is one, by which others can be multiplied.
    """

    tensors: list[str]
    grad: set[str]
    statements: list[Statement] = field(default_factory=list)
    unlike: str = ""

    @property
    def current(self) -> str:
        return self.tensors[-1]

    def bind(self, name: str, grad: bool = True) -> None:
        self.tensors.append(name)
        if grad:
            self.grad.add(name)


@dataclass(frozen=True)
class Call:
    """How a region is called, as Region has it; the names ``inside`` of tensors, and of ``others`` that are none."""

    parameters: tuple[str, ...]
    unpack: tuple[tuple[str, str], ...]
    arguments: str
    passed: tuple[str, ...]
    inside: tuple[str, ...]
    others: tuple[str, ...]


class Author:
    """Draws one program. Holds the draw function, the feature switches and a counter for names."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], always: frozenset[str], sometimes: frozenset[str],
                 operators: tuple[Operator, ...], depth: int, only: Operator | Layer | None = None) -> None:  # fmt: skip
        self.draw, self.always, self.sometimes, self.depth = draw, always, sometimes, depth
        self.operators, self.only = operators, only
        self.rows = 1  # of the matrices that are computed with
        self.order = Order.SAME  # of the operators' sums
        self.parameters: list[str] = []
        self.modules: list[str] = []
        self.layers: dict[str, Layer] = {}  # by their names
        self.closed: list[str] = []
        self.regional: set[str] = set()
        self.withheld: set[str] = set()  # what no region returns
        self.values: set[str] = set()  # names of what operators and regions give
        self.names = 0
        self.used: set[str] = set()
        self.coming = {"create-graph"} & (always | sometimes)  # what the driver may use, which is drawn last

    def draw_feature(self, feature: str) -> bool:
        """Draw whether the feature is used here; each call draws anew, unless it is always used or never."""
        on = feature in self.always or (feature in self.sometimes and self.draw(st.booleans()))
        if on:
            self.used.add(feature)
        return on

    def one_of(self, features: Iterable[str]) -> str | None:
        """The one of these features that is used, if any; all are equally likely."""
        options = [name for name in features if name in self.always]
        options = options or [name for name in features if name in self.sometimes]
        if not options:
            return None
        chosen = options[0] if options[0] in self.always else self.pick([None, *options])
        if chosen is not None:
            self.used.add(chosen)
        return chosen

    def pick(self, options: Iterable[T]) -> T:
        return self.draw(st.sampled_from(tuple(options)))

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def value(self) -> str:
        """The name of what an operator or a region gives."""
        name = self.fresh("h")
        self.values.add(name)
        return name

    def op(self, scope: Scope, operator: Operator) -> str:
        """One operator; the result is the new current value."""
        args = (scope.current, self.pick(scope.tensors)) if operator.reads_another else (scope.current,)
        self.order = self.order.and_of(operator.order)
        return self.bind(scope, Op(self.value(), operator.template, args, self.roundings(operator)))

    def module(self, scope: Scope, template: str) -> str:
        """A call of a module; the result is the new current value."""
        return self.bind(scope, Op(self.value(), template, (scope.current,), MODULE_TERMS))

    def layer(self, scope: Scope, name: str, call: str) -> str:
        """A call of a layer, or of a region of which it is the function; the result is the new current value."""
        layer = self.layers[name]
        self.order = self.order.and_of(Order.SAME_ON_CPU)
        return self.bind(scope, Op(self.value(), layer.call.format(call, "{0}"), (scope.current,), layer.terms))

    def bind(self, scope: Scope, op: Op) -> str:
        scope.statements.append(op)
        scope.bind(op.target, any(name in scope.grad for name in op.args))
        return op.target

    def roundings(self, operator: Operator) -> int:
        """The roundings of an operator on this program's matrices."""
        return operator.roundings(self.rows, complex_numbers="complex" in self.used)

    def body(self, scope: Scope, depth: int, first: bool) -> None:
        """Statements of one body: operators and regions in a drawn order, then what features demand."""
        if not any(isinstance(one, Op) and one.template == PRODUCT.template for one in scope.statements):  # which saves
            self.op(scope, self.pick([one for one in self.operators if one.saves != "nothing"] or self.operators))
        for _ in range(self.draw(st.integers(0, 2))):
            if depth and self.draw(st.booleans()):
                self.region(scope, depth)
            else:
                self.op(scope, self.pick(self.operators))
        if first and "nesting" in self.used and not any(isinstance(one, Region) for one in scope.statements):
            self.region(scope, depth)
        self.demanded(scope)
        if first and self.draw_feature("saves-hidden"):
            self.save_hidden(scope)

    def demanded(self, scope: Scope) -> None:
        """Statements that features demand of every body."""
        for feature, operators in {**OPERATORS, "layers": FUNCTIONS}.items():
            there = self.possible(operators)
            if (there or feature in self.always) and self.draw_feature(feature):
                self.op(scope, self.pick(there))
        if "complex" in self.used:
            self.op(scope, self.pick(CONJUGATES))
        if self.modules:
            self.module(scope, f"{self.pick(self.modules)}({{0}})")
        for name in self.layers:
            self.layer(scope, name, f"{name}(")
        if self.draw_feature("no-grad"):
            constant = self.value()
            scope.statements.append(Block("with torch.no_grad():", (Op(constant, SIN.template, (scope.current,), SIN.terms),)))
            target = self.value()
            scope.statements.append(Op(target, PRODUCT.template, (scope.current, constant), self.roundings(PRODUCT)))
            scope.bind(target)
        if self.draw_feature("corrupted"):
            self.op(scope, SIN)  # one tensor at least has been saved, and it is not this one
            names = [name for name in scope.tensors[:-1] if name in self.values]
            scope.statements.append(Line("{0}.mul_(0.5)", (self.pick(names),)))
            if self.draw(st.booleans()):
                self.op(scope, SIN)
        if self.draw_feature("long"):
            chain = self.draw(st.booleans())
            for _ in range(self.draw(st.integers(12, 16)) if chain else 1):
                self.op(scope, SIN if chain else SAVE_MANY)
        if self.draw_feature("hooks"):
            scope.statements.append(Line("{0}.register_hook(lambda grad: grad * 2)", (scope.current,)))
            self.op(scope, SIN)

    def possible(self, operators: tuple[T, ...]) -> list[T]:
        """Those of these operators or layers that the program can have; if its only layer is among them, that one alone."""
        there: Any = [one for one in operators if one == self.only] or operators
        return [one for one in there if one.lacking.isdisjoint(self.used | self.coming)]

    def save_hidden(self, scope: Scope) -> None:
        """Operators, if the body lacks them, so that one saves a tensor that is made in the body and not returned."""
        while not (saving := hidden(scope.statements, (scope.current,))):
            self.op(scope, self.pick(SAVE_INPUTS))
        self.withheld.update(set(saving[0].args) - {scope.current})

    def region(self, outer: Scope, depth: int, first: bool = False) -> None:
        """One region, called on the current value and others; its results become the current value.

        The ``first`` one has the features that a program has once.
        """
        name = self.fresh("f")
        passed, after = [outer.current], []
        if self.draw_feature("no-input-grad"):
            passed, after = ["c0"], self.computed(outer)[-1:]
        elif (others := outer.tensors[:-1]) and self.draw(st.booleans()):
            passed.append(self.pick(others))
        repeated = self.draw_feature("repeated-inputs")
        if repeated:
            passed.append(passed[0])
        also = [outer.unlike] if outer.unlike and passed[0] != "c0" else []
        call, added = self.widened(self.call((*passed, *also)), outer)
        inside = list(call.inside[: len(passed)])
        unlike = call.inside[-1] if also else outer.unlike
        grad = {new for new, old in zip(inside, passed, strict=True) if old in outer.grad}
        scope = Scope(inside[::-1], grad, unlike=unlike)
        if not scope.grad:
            scope.bind(self.closed_over(outer))
        elif self.draw_feature("closure"):
            scope.bind(self.closed_over(outer))
            if self.draw(st.booleans()):  # else nothing may come of what it is passed, and it gets no gradient
                self.join(scope, inside[0])
        for argument in inside[1:] if "keyword" in self.used else inside[-1:] if repeated else ():
            self.join(scope, argument)  # that it is the same tensor, or the one of that name, shows where it is read
        if call.others:
            self.depend(scope, *call.others)
        if unlike:
            self.join(scope, unlike)
        self.mix(scope, tuple(added), any(added.values()))
        self.body(scope, depth - 1, first)
        after += self.escape(outer, scope)
        self.results(outer, name, call, scope)
        for value in after:
            self.join(outer, value)

    def widened(self, call: Call, outer: Scope) -> tuple[Call, dict[str, bool]]:
        """The call with many more arguments; also, for each, its name inside and whether it requires grad."""
        first, last = {}, {}
        there = outer.tensors if call.passed[0] != "c0" else ["c0"]  # of which no argument may require grad
        if self.draw_feature("many-arguments"):
            first = {self.fresh("w"): self.pick(there) for _ in range(self.draw(st.integers(6, 13)))}
        if self.draw_feature("aliases"):
            name = self.fresh("alias")
            alias = Op(self.value(), self.pick(ALIASES), (call.passed[0],), SIN.terms)
            outer.statements.append(alias)
            first[name] = alias.target
            if "detach" not in alias.template and call.passed[0] in outer.grad:
                outer.grad.add(alias.target)
        if self.draw_feature("named-arguments"):
            names = self.draw(st.permutations(NAMES))[: self.draw(st.integers(4, 6))]
            last = {name: self.pick(there) for name in names}
        texts = [*first.values(), *filter(None, [call.arguments]), *(f"{name}={text}" for name, text in last.items())]
        made = replace(call, parameters=(*first, *call.parameters, *last), arguments=", ".join(texts),
                       passed=(*call.passed, *first.values(), *last.values()))  # fmt: skip
        return made, {name: text in outer.grad for name, text in (first | last).items()}

    def mix(self, scope: Scope, others: tuple[str, ...], requires_grad: bool = True) -> None:
        """Add other tensors to the current value, if there are any, each with a weight that no other gets."""
        if others:
            names = (scope.current, *others)
            operator = mixture(len(names))
            target = self.value()
            scope.statements.append(Op(target, operator.template, names, self.roundings(operator)))
            scope.bind(target, scope.current in scope.grad or requires_grad)

    def closed_over(self, outer: Scope) -> str:
        """A tensor requiring grad that the function reads without being passed it."""
        if self.draw_feature("closure-intermediates"):
            self.closed.append(self.pick(self.computed(outer) or [self.op(outer, self.pick(self.operators))]))
        else:
            self.closed.append(self.pick(self.parameters))
        return self.closed[-1]

    def computed(self, scope: Scope) -> list[str]:
        """What was computed before and requires grad."""
        return [name for name in scope.tensors if name in self.values and name in scope.grad]

    def changes(self, outer: Scope) -> tuple[Line, ...]:
        """Lines after forward that change tensors in place: ones that no function reads by closure, or one that is read so."""
        names: list[str] = []
        if self.draw_feature("mutated"):
            others = [name for name in outer.tensors if name not in self.closed and name not in self.regional]
            there = mentioned(outer.statements)
            others = [name for name in others if name in there] or others
            names += self.draw(st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True))
        if (self.closed or "mutated-closure" in self.always) and self.draw_feature("mutated-closure"):
            names.append(self.pick(self.closed))
        return tuple(Line("with torch.no_grad(): {0}.mul_(0.5)", (name,)) for name in names)

    def escape(self, outer: Scope, scope: Scope) -> list[str]:
        """What the function hands out past its results, if anything."""
        if not self.draw_feature("escaping"):
            return []
        kept = self.fresh("kept")
        outer.statements.append(Line(f"{kept} = []"))
        scope.statements.append(Line(f"{kept}.append({{0}})", (scope.current,)))
        self.op(scope, SIN)
        return [f"{kept}[0]"]

    def join(self, scope: Scope, other: str) -> None:
        target = self.value()
        scope.statements.append(Op(target, PRODUCT.template, (scope.current, other), self.roundings(PRODUCT)))
        scope.bind(target)

    def depend(self, scope: Scope, first: str, second: str) -> None:
        """Compute with two arguments that are no tensors, so that values show whether they are what was passed."""
        target = self.value()
        factor = f"len({second}) if {first} is None else {first} + ({second} is torch.float32)"
        scope.statements.append(Op(target, f"{{0}} * ({factor})", (scope.current,), PRODUCT.terms))
        scope.bind(target, scope.current in scope.grad)

    def call(self, passed: tuple[str, ...]) -> Call:
        """How these tensors are passed, and what is passed besides them."""
        inside = [self.fresh("a") for _ in passed]
        passes_others = self.draw_feature("non-tensors")
        extra = [("None", "'text'"), ("3", "torch.float32")][self.draw(st.integers(0, 1))] if passes_others else ()
        others = [self.fresh("s") for _ in extra]
        unpack: tuple[tuple[str, str], ...] = ()
        if self.draw_feature("containers"):
            box = self.fresh("box")
            text, paths = self.pick(CONTAINERS)(passed)
            unpack = tuple((new, box + path) for new, path in zip(inside, paths, strict=True))
            tensors, texts = [box], [*extra, text]
        elif self.draw_feature("unusual-containers"):
            box = self.fresh("box")
            text, paths = self.pick(UNUSUAL_CONTAINERS)(passed)
            unpack = tuple((new, box + path) for new, path in zip(inside, paths, strict=True))
            tensors, texts = [box], [*extra, text]
        else:
            tensors, texts = inside, [*extra, *passed]
        parameters = [*others, *tensors]
        if self.draw_feature("keyword"):
            last = tensors[0] if self.draw(st.booleans()) else tensors[-1]
            at = parameters.index(last)
            texts = [f"{p}={t}" if i >= at else t for i, (p, t) in enumerate(zip(parameters, texts, strict=True))]
        return Call(tuple(parameters), unpack, ", ".join(texts), passed, tuple(inside), tuple(others))

    def results(self, outer: Scope, name: str, call: Call, scope: Scope) -> None:
        """What the function returns, and how it is bound and used outside."""
        returned = [scope.current]
        useful = 1
        computed = [name for name in self.computed(scope) if name not in {scope.current, *self.withheld}]
        if computed and self.draw(st.booleans()):
            returned.append(self.pick(computed))
            useful = 2
        others = {"view-outputs": f"{scope.current}.t()", "input-outputs": call.inside[0], "repeated-outputs": scope.current}
        for feature, text in others.items():
            if self.draw_feature(feature):
                returned.append(text)
                useful += 1
        if self.draw_feature("unused-outputs"):
            returned.append(f"torch.tanh({scope.current})")
        silent = [f"{scope.current}.detach()", f"({scope.current}.abs() > 0)"] if self.draw_feature("no-grad-outputs") else []
        literal = ["None", "7"] if self.draw_feature("non-tensor-outputs") else []
        more = range(self.draw(st.integers(8, 12))) if self.draw_feature("many-outputs") else ()
        many = [f"{scope.current} * {number + 2}" for number in more]
        texts = [*returned, *silent, *literal, *many]
        targets = [self.value() for _ in texts]
        self.regional.update(targets)
        contained, unusual = self.draw_feature("container-outputs"), False
        if contained:
            result, paths = self.pick(CONTAINERS)(texts)
        elif unusual := self.draw_feature("unusual-containers"):
            result, paths = self.pick(UNUSUAL_CONTAINERS)(texts)
        elif len(texts) == 1:
            result, paths = texts[0], [""]
        else:
            result, paths = f"({', '.join(texts)})", [f"[{i}]" for i in range(len(texts))]
        outer.statements.append(Region(name, call.parameters, call.unpack, call.arguments, call.passed,
                                       tuple(scope.statements), result, tuple(texts),
                                       tuple(zip(targets, paths, strict=True))))  # fmt: skip
        if contained or unusual:
            outer.statements.append(Noted(Note(Role.VALUE, (name, "returned")), f"{name}_value"))
        if silent or literal:
            noted = targets[len(returned) : len(texts) - len(many)]
            outer.statements.append(Noted(Note(Role.VALUE, (name,)), f"({', '.join(noted)},)"))
        outer.bind(targets[0])
        for target in targets[1:useful]:
            self.join(outer, target)
        self.mix(outer, tuple(targets[len(texts) - len(many) :]))
