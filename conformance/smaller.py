"""What one step of a reduction makes of a script: its program with a line, a part of one, or a step around lines less."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from conformance.script_parts import WIDTH

SCREEN = 39  # lines: up to so many a script is left as it reads best


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


def smaller_ones(script: str, binding: str) -> Iterator[str]:
    """What one step makes of the program in a script, later lines before earlier ones, statements before their parts.

    Where it is longer than a screen, what is used once is put where it is used, and blank lines go.
    """
    lines = script.splitlines(keepends=True)
    after = script[: script.index(binding)].count("\n") + binding.count("\n") + 1
    body = ast.parse(script).body
    names = [getattr(one, "name", "") for one in body]
    program = [one for one in body[: names.index("run") + 1] if one.lineno > after]
    for first, last, text in _steps(program, lines, is_whole=True):
        yield "".join([*lines[: first - 1], text, *lines[last:]])
    if len(lines) > SCREEN:
        yield from _inlined(program[-1], lines)
        yield "".join([*lines[: program[-1].end_lineno], *filter(str.strip, lines[program[-1].end_lineno :])])


def _inlined(run: ast.stmt, lines: list[str]) -> Iterator[str]:
    """The script, with a variable or a function without arguments put where it is used, where that is one place."""
    names = [node for node in ast.walk(run) if isinstance(node, ast.Name)]
    for statement in [node for node in ast.walk(run) if isinstance(node, ast.Assign | ast.FunctionDef)]:
        match statement:
            case ast.Assign([ast.Name(name)], ast.expr() as value) if "requires_grad" not in lines[statement.lineno - 1]:
                pass
            case ast.FunctionDef(name, arguments, [*_, ast.Return(ast.expr() as value)], []) if not ast.unparse(arguments):
                pass
            case _:
                continue
        uses = [node for node in names if node.id == name and isinstance(node.ctx, ast.Load)]
        bound = [node for node in names if node.id == name and isinstance(node.ctx, ast.Store)]
        if len(uses) == 1 and len(bound) == isinstance(statement, ast.Assign) and uses[0].lineno > (statement.end_lineno or 0):
            new = (_put if isinstance(statement, ast.Assign) else _put_body)(statement, value, uses[0], lines)
            first, last = statement.lineno - 1, statement.end_lineno
            yield "".join([*lines[:first], *lines[last : uses[0].lineno - 1], new, *lines[uses[0].lineno :]])


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return (
        f"({text})" if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda | ast.UnaryOp) else text
    )


def _put(_: ast.stmt, value: ast.expr, use: ast.Name, lines: list[str]) -> str:
    line = lines[use.lineno - 1]
    new = line[: use.col_offset] + _text(value) + line[use.end_col_offset :]
    return new if len(new) <= WIDTH else line


def _put_body(function: ast.stmt, value: ast.expr, use: ast.Name, lines: list[str]) -> str:
    """The body of a function in the place of a line that binds what it returns."""
    assert isinstance(function, ast.FunctionDef)
    line = lines[use.lineno - 1]
    inside = lines[function.body[0].lineno - 1 : function.body[-1].lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    bound = line[: use.col_offset] + _text(value) + line[use.end_col_offset :].removeprefix("()")
    return textwrap.indent(textwrap.dedent("".join(inside)), indent) + bound


def _steps(block: list[ast.stmt], lines: list[str], *, is_whole: bool = False) -> Iterator[tuple[int, int, str]]:
    """The first and the last line of what is to be replaced, and by which text."""
    for statement in reversed(block):
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
        last = statement.end_lineno or first
        if len(block) > 1 and "manual_seed" not in lines[first - 1]:
            yield first, last, ""
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for inside in _blocks(statement):
                text = textwrap.dedent("".join(lines[inside[0].lineno - 1 : inside[-1].end_lineno]))
                yield first, last, textwrap.indent(text, " " * statement.col_offset)
            for simpler in _simpler(statement):
                yield first, last, textwrap.indent(ast.unparse(simpler), " " * statement.col_offset) + "\n"
        for inside in _blocks(statement):
            yield from _steps(inside, lines)


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


def _without(index: int, node: Any) -> None:
    del (node.names if isinstance(node, ast.Import | ast.ImportFrom) else node.elts)[index]


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
