"""What one step of a reduction makes of a script: its program with a line, a part of one, or a step around lines less.

Which steps there are was settled by making the 113 longest published scripts of built-in implementations anew, and one of
each of 124 other laws, with every step logged. Statements went in all of them but 12, elements of lists and tuples in 69,
blocks around statements in 52, cases of expressions in 36, pairs of dicts in 19, items of ``with`` in 6, names of imports in
6, suppressed errors in 2. What changed fewer than 2 is not here: fewer parameters, fewer types of errors, names bound at
once, dicts filled at once, a name for a function.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from conformance.reproducers.inlining import put_where_used, without_calls
from conformance.reproducers.line_joining import joined
from conformance.reproducers.script_syntax import dotted_names, first_modules, has_threads, identifiers, with_modules
from conformance.reproducers.stand_ins import standing_in

SCREEN = 39  # lines: up to so many a script is left as it reads best
MOST = 45  # lines that a published script may have


def is_bound(script: str) -> bool:
    """Whether it can be read, and every name in it is bound somewhere: what is not need not be tried."""
    try:
        nodes = list(ast.walk(ast.parse(script)))
    except SyntaxError:
        return False
    bound = {"__name__", *dir(builtins)}
    for node in nodes:
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.alias(name, other):
                bound.add((other or name).partition(".")[0])
            case ast.ExceptHandler(_, str() as name):
                bound.add(name)
    return all(node.id in bound for node in nodes if isinstance(node, ast.Name))


def joins(script: str) -> list[str]:
    """Statements by which threads wait for one another, and loops that are made of one: without it two runs may differ."""
    if not has_threads(script):
        return []
    found = []
    for node in ast.walk(ast.parse(script)):
        match node:
            case (
                ast.Expr(ast.Call(ast.Attribute(_, "join" | "wait" | "set" | "acquire" | "release")))
                | ast.For(body=[ast.Expr(ast.Call(ast.Attribute(_, "join")))])
            ):
                found.append(ast.unparse(node))
    return sorted(found)


def with_needed_modules(script: str) -> str:
    """The script without modules in its first import that nothing has a use for."""
    return with_modules(script, first_modules(script) & dotted_names(script))


def smaller_ones(script: str, binding: str) -> Iterator[str]:
    """What one step makes of the program in a script, later lines before earlier ones, statements before their parts.

    Where it is longer than a screen, what is used once is put where it is used. What is this project's own is replaced last.
    """
    lines = script.splitlines(keepends=True)
    after = script[: script.index(binding)].count("\n") + binding.count("\n") + 1
    body = ast.parse(script).body
    names = [getattr(one, "name", "") for one in body]
    program = [one for one in body[: names.index("run") + 1] if one.lineno > after]
    for first, last, text in _steps(program, lines, is_whole=True):
        yield "".join([*lines[: first - 1], text, *lines[last:]])
    if is_long(script):
        yield from put_where_used(program, lines)
        yield from without_calls(program, lines)
    yield from standing_in(script)


def is_long(script: str) -> bool:
    """Whether it does not fit a screen, not even with blocks of one statement on the lines of their heads."""
    return len(joined(script).splitlines()) > SCREEN


def _steps(block: list[ast.stmt], lines: list[str], *, is_whole: bool = False) -> Iterator[tuple[int, int, str]]:
    """The first and the last line of what is to be replaced, and by which text."""
    for statement in reversed(block):
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
        last = statement.end_lineno or first
        if len(block) > 1 and not _seeds(statement):
            yield first, last, ""
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for inside in _blocks(statement):
                text = textwrap.dedent("".join(lines[inside[0].lineno - 1 : inside[-1].end_lineno]))
                yield first, last, textwrap.indent(text, " " * statement.col_offset)
            for simpler in _simpler(statement):
                yield first, last, textwrap.indent(ast.unparse(simpler), " " * statement.col_offset) + "\n"
            for line, simpler in _simpler_heads(statement):
                text = ast.unparse(ast.fix_missing_locations(simpler)).splitlines()[-2]
                yield line, line, textwrap.indent(text, " " * statement.col_offset) + "\n"
        for inside in _blocks(statement):
            yield from _steps(inside, lines)


def _seeds(statement: ast.stmt) -> bool:
    return not _blocks(statement) and "manual_seed" in identifiers(statement)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The statements inside of a statement, where it has any."""
    handlers = [one.body for one in getattr(statement, "handlers", [])]
    return [*filter(None, (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))), *handlers]


def _simpler(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Simple statements with one import, noted value or case of an expression less."""
    if _blocks(statement):
        return
    for number, node in enumerate(ast.walk(statement)):
        match node:
            case ast.Import(names) | ast.ImportFrom(_, names) | ast.Tuple(names, ast.Load()) | ast.List(names, ast.Load()):
                for index in range(len(names)) if len(names) > 1 else ():
                    yield _changed(statement, number, functools.partial(_without, index))
            case ast.Dict(names):
                for index in range(len(names)) if len(names) > 1 else ():
                    yield _changed(statement, number, functools.partial(_without_pair, index))
            case ast.IfExp():
                yield _changed(statement, number, lambda one: setattr(one, "test", ast.Constant(True)))
                yield _changed(statement, number, lambda one: setattr(one, "test", ast.Constant(False)))


def _simpler_heads(statement: ast.stmt) -> Iterator[tuple[int, ast.stmt]]:
    """Lines at the head of blocks, each with a statement that ends with the line that is to replace it, and ``pass``."""
    rest: list[ast.stmt] = [ast.Pass()]
    if isinstance(statement, ast.With) and len(statement.items) > 1:
        for index in range(len(statement.items)):
            yield statement.lineno, ast.With([*statement.items[:index], *statement.items[index + 1 :]], rest)
    head = ast.With(getattr(statement, "items", []), rest)
    for number, node in enumerate(ast.walk(head)):
        match node:
            case ast.Call(ast.Name("suppress") | ast.Attribute(_, "suppress"), [_, _, *_] as suppressed):
                for index in range(len(suppressed)):
                    yield statement.lineno, _changed(head, number, functools.partial(_without_passed, index))


def _without(index: int, node: Any) -> None:
    del (node.names if isinstance(node, ast.Import | ast.ImportFrom) else node.elts)[index]


def _without_passed(index: int, node: ast.Call) -> None:
    del node.args[index]


def _without_pair(index: int, node: ast.Dict) -> None:
    del node.keys[index], node.values[index]


def _changed(statement: ast.stmt, number: int, change: Callable[[Any], object]) -> ast.stmt:
    """A copy in which the node of that number is changed."""
    copied = copy.deepcopy(statement)
    change(list(ast.walk(copied))[number])
    return ast.fix_missing_locations(_Decided().visit(copied))


class _Decided(ast.NodeTransformer):
    """Puts in the place of an expression that is decided the case that it is decided for."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        match self.generic_visit(node):
            case ast.IfExp(ast.Constant(bool() as decided), body, orelse):
                return body if decided else orelse
        return node
