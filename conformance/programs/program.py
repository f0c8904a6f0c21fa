"""What a program is: a small typed tree that prints as runnable Python. The printed text is what runs.

A program defines ``run(checkpoint, note, device)``; programs for another kind take something else in place of ``checkpoint``.
``run`` makes the leaves, then runs the body, which calls regions through ``checkpoint``, and then the driver, which asks for
gradients. ``note(label, value)`` marks a point in time, with a value to be compared there. Nothing else leaves a program, and
its random numbers depend on its seed alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, Protocol

from conformance.programs.backward_calls import Request, listed
from conformance.programs.notes import WHOLE_FORWARD, Note, Role
from conformance.programs.specialization import folded
from conformance.programs.sums import DEFAULT, Order, Sums

Run = Callable[..., None]
WIDTH = 128  # of its lines
FILE = "<program>"  # where Python says that the code of a program is


class Runnable(Protocol):
    """What it takes to run a program: the text that defines ``run(checkpoint, note, device)``."""

    @property
    def source(self) -> str: ...


@dataclass(frozen=True)
class Leaf:
    """A tensor that exists before the program's body: ``code`` makes it, ``grad`` says whether it requires grad.

    A ``module`` stands for its parameters, of which there is one at least.
    """

    name: str
    code: str
    grad: bool
    module: bool = False

    @property
    def tensors(self) -> str:
        """Its text in a list of tensors."""
        return f"*{self.name}.parameters()" if self.module else self.name

    @property
    def gradients(self) -> str:
        """The text of its gradients in a list of gradients."""
        return f"*(each.grad for each in {self.name}.parameters())" if self.module else f"{self.name}.grad"


@dataclass(frozen=True)
class Op:
    """``target = code``, an operator of which ``args`` are the tensors that it reads, in their order in the text.

    ``terms`` are the roundings that it adds to a path through forward and backward: its own, and those of its derivative, of
    the product with the gradient, and of the sum of that gradient with another one.
    """

    target: str
    template: str
    args: tuple[str, ...]
    terms: int

    @property
    def code(self) -> str:
        return self.template.format(*self.args)


@dataclass(frozen=True)
class Line:
    """Any other statement, with ``{0}`` and so on in place of the tensors that it names."""

    template: str
    args: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        return self.template.format(*self.args)


@dataclass(frozen=True)
class Noted:
    """A note of what a text stands for; without one, of a moment."""

    note: Note
    value: str = ""

    @property
    def code(self) -> str:
        return f"note({', '.join(filter(None, (repr(self.note.label), self.value)))})"


def gradients(about: str, leaves: Iterable[Leaf]) -> Noted:
    """The note of what leaves have for gradients."""
    return Noted(Note(Role.GRADIENTS, tuple(about.split())), listed(leaf.gradients for leaf in leaves if leaf.grad))


@dataclass(frozen=True)
class Block:
    """A ``with`` statement around statements."""

    header: str
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Region:
    """A function and the call of it through ``checkpoint``, or what the text ``through`` names instead.

    ``parameters`` are the names inside, ``unpack`` the lines that take tensors out of containers. ``arguments`` is the text of
    the call's arguments, and ``passed`` the tensors in it. ``result`` is the text that the function returns; ``targets`` are
    names outside, each with the path into the result to which it is bound.
    """

    name: str
    parameters: tuple[str, ...]
    unpack: tuple[tuple[str, str], ...]
    arguments: str
    passed: tuple[str, ...]
    body: tuple[Statement, ...]
    result: str
    returned: tuple[str, ...]
    targets: tuple[tuple[str, str], ...]
    through: str = "checkpoint"


Step = Request | Noted | Line  # of a driver
Statement = Op | Block | Region | Step


@dataclass(frozen=True)
class Program:
    """Leaves, body, the tensors that gradients are asked of, and the driver's steps, which ask.

    ``order`` is that of its sums. Gradients of gradients make the longest path through it ``times`` as long.
    """

    leaves: tuple[Leaf, ...]
    body: tuple[Statement, ...]
    outputs: tuple[str, ...]
    driver: tuple[Step, ...]
    seed: int = 0
    preamble: tuple[str, ...] = ()
    features: frozenset[str] = field(default=frozenset(), compare=False)
    order: Order = Order.SAME
    times: int = 1

    @functools.cached_property
    def sums(self) -> Sums:
        """Every operator may be on the longest path, and each step of the driver may add a gradient to others."""
        return Sums(self.times * terms(self.body) + len(self.driver), self.order)

    @functools.cached_property
    def source(self) -> str:
        lines = ["import torch", "", *self.preamble, "def run(checkpoint, note, device):"]
        inside = [f"torch.manual_seed({self.seed})"]
        inside += [f"{leaf.name} = {leaf.code}" for leaf in self.leaves]
        before = Noted(Note(Role.LEAVES), tuple_of(leaf.tensors for leaf in self.leaves))
        inside += render((before, *self.body, Noted(WHOLE_FORWARD, tuple_of(self.outputs)), *self.driver))
        return "\n".join([*lines, *(f"    {line}" for line in inside)]) + "\n"

    @property
    def requests(self) -> tuple[Request, ...]:
        """What the driver asks of autograd."""
        return tuple(step for step in self.driver if isinstance(step, Request))

    @property
    def regions(self) -> tuple[Region, ...]:
        """Every region, outer ones before those inside them."""
        return tuple(walk(self.body))


def walk(body: tuple[Statement, ...]) -> Iterator[Region]:
    """The regions of a body, outer ones before those inside them."""
    for statement in body:
        if isinstance(statement, Region):
            yield statement
        if isinstance(statement, Region | Block):
            yield from walk(statement.body)


def mentioned(body: Iterable[Statement]) -> set[str]:
    """The names of tensors that a body binds, reads or passes, in its regions, too."""
    found: set[str] = set()
    for one in body:
        match one:
            case Op():
                found.update(one.args, (one.target,))
            case Line():
                found.update(one.args)
            case Block():
                found |= mentioned(one.body)
            case Region():
                found.update(one.passed, (name for name, _ in one.targets), mentioned(one.body))
    return found


def terms(body: tuple[Statement, ...]) -> int:
    """The roundings of all operators of a body, those of its regions included; of other statements one each."""
    inner = sum(terms(one.body) for one in body if isinstance(one, Region | Block))
    return inner + sum(one.terms if isinstance(one, Op) else 1 for one in body)


def tuple_of(names: Iterable[str]) -> str:
    """The text of a tuple of these."""
    joined = ", ".join(names)
    return f"({joined},)" if joined else "()"


def render(body: tuple[Statement, ...]) -> list[str]:
    """The lines of a body, not indented."""
    lines: list[str] = []
    for statement in body:
        match statement:
            case Op():
                lines.append(f"{statement.target} = {statement.code}")
            case Line() | Noted() | Request():
                lines.append(statement.code)
            case Block():
                lines += [statement.header, *(f"    {line}" for line in render(statement.body) or ["pass"])]
            case Region():
                lines += _region(statement)
    return lines


def _region(region: Region) -> list[str]:
    inside = [f"{name} = {path}" for name, path in region.unpack]
    inside += [*render(region.body), f"return {region.result}"]
    lines = [f"def {region.name}({', '.join(region.parameters)}):", *(f"    {line}" for line in inside)]
    call = f"{region.through}({', '.join(filter(None, [region.name, region.arguments]))})"
    if len(region.targets) == 1 and region.targets[0][1] == "":
        return [*lines, f"{region.targets[0][0]} = {call}"]
    value = f"{region.name}_value"
    return [*lines, f"{value} = {call}", *(f"{name} = {value}{path}" for name, path in region.targets)]


IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Named:
    """A program written by hand as a function ``run(checkpoint, note, device, **arguments)``, with its arguments.

    For another kind the first parameter has another name, such as ``graph``. ``preamble`` are lines before its imports. A
    program that ``compiles`` what calls the checkpoint runs without meters around regions' functions, because a compiler would
    have to trace them.
    """

    function: Callable[..., None]
    arguments: tuple[tuple[str, Any], ...] = ()
    sums: Sums = DEFAULT
    preamble: tuple[str, ...] = ()
    compiles: bool = False

    @functools.cached_property
    def source(self) -> str:
        subject = _tree(self.function).args.args[0].arg
        head = ["import torch", *self.preamble, *self.imports, "", f"def run({subject}, note, device):"]
        return "\n".join([*head, "    torch.manual_seed(0)", *self.body]) + "\n"

    @property
    def imports(self) -> list[str]:
        """The lines that import: outside of ``run``, because an import that fails is no fault of the implementation."""
        return [line for one in self._folded if isinstance(one, IMPORTS) for line in _lines(one)]

    @property
    def body(self) -> list[str]:
        """The lines of ``run`` for these arguments, without imports."""
        lines = [line for one in self._folded if not isinstance(one, IMPORTS) for line in _lines(one)]
        return [f"    {line}" if line else "" for line in lines]

    @functools.cached_property
    def _folded(self) -> list[ast.stmt]:
        return folded(_tree(self.function), dict(self.arguments))


@functools.cache
def _tree(function: Callable[..., None]) -> ast.FunctionDef:
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    for node in ast.walk(definition):  # annotations are for who reads this project: a script does not import their names
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return definition


def _lines(statement: ast.stmt) -> list[str]:
    return ast.unparse(ast.fix_missing_locations(statement)).splitlines()


@functools.lru_cache(maxsize=4096)
def _module(source: str) -> tuple[ModuleType, CodeType]:
    """A program's module and its code; the same program gives the same module name, and so the same names of classes."""
    name = f"program_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    return ModuleType(name), compile(source, FILE, "exec", dont_inherit=True)  # as a script that is printed is compiled


def load(program: Runnable) -> Run:
    """The ``run`` function that the program's text defines."""
    module, code = _module(program.source)
    sys.modules[module.__name__] = module  # a compiler imports the module that a function says it is of
    exec(code, module.__dict__)
    return module.__dict__["run"]
