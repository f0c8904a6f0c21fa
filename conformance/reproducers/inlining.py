"""What is used once in a program is put where it is used, so that a script that is too long has fewer lines."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Sequence

from conformance.reproducers.script_parts import WIDTH
from conformance.reproducers.script_syntax import identifiers

LEAVES = {"requires_grad", "requires_grad_"}  # a line that makes a leaf reads best by itself
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp)


def put_where_used(program: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """The script of these lines with one thing of its program put elsewhere. Each is to be tried: none is sure to do the same.

    These are variables and functions that are used once, other names of values, and functions that only return something.
    """
    nodes = [node for statement in program for node in ast.walk(statement)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], ast.Name() | ast.Constant() as other):
                yield _joined(lines, node, *_renamed(name, ast.unparse(other), names, lines))
            case ast.Assign([ast.Name(name)], ast.expr() as value) if identifiers(node).isdisjoint(LEAVES):
                yield from _put(node, name, value, names, lines)
            case ast.FunctionDef(name, arguments, [ast.Return(ast.expr() as value)], []):
                yield from _as_expression(node, arguments, value, lines)
        match node:
            case ast.FunctionDef(name, arguments, [*_, ast.Return(ast.expr() as value)], []) if not ast.unparse(arguments):
                yield from _put_body(node, value, names, lines)
            case ast.FunctionDef(name, _, [*_], []):
                yield from _put_call(node, nodes, lines)


def _joined(lines: Sequence[str], gone: ast.stmt, *changed: tuple[int, str]) -> str:
    """The lines without those of a statement, and with others in the place of those of these numbers."""
    new = dict(changed)
    return "".join(
        new.get(number, line) for number, line in enumerate(lines, 1) if not gone.lineno <= number <= (gone.end_lineno or 0)
    )


def _renamed(name: str, other: str, names: Sequence[ast.Name], lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    new: dict[int, str] = {}
    for use in sorted(names, key=lambda use: -use.col_offset):
        if use.id == name and isinstance(use.ctx, ast.Load):
            line = new.get(use.lineno, lines[use.lineno - 1])
            new[use.lineno] = line[: use.col_offset] + other + line[use.end_col_offset :]
    yield from new.items()


def _only_use(of: ast.stmt, name: str, names: Sequence[ast.Name]) -> ast.Name | None:
    """Where a name is used that this statement alone binds, if that is one place, and after it."""
    uses = [node for node in names if node.id == name and isinstance(node.ctx, ast.Load)]
    bound = [node for node in names if node.id == name and isinstance(node.ctx, ast.Store)]
    once = len(uses) == 1 and len(bound) == isinstance(of, ast.Assign) and uses[0].lineno > (of.end_lineno or 0)
    return uses[0] if once else None


def _put(of: ast.stmt, name: str, value: ast.expr, names: Sequence[ast.Name], lines: Sequence[str]) -> Iterator[str]:
    use = _only_use(of, name, names)
    if use is not None:
        line = lines[use.lineno - 1]
        text = f"({ast.unparse(value)})" if isinstance(value, OPERATIONS) else ast.unparse(value)
        new = line[: use.col_offset] + text + line[use.end_col_offset :]
        if len(new) <= WIDTH:
            yield _joined(lines, of, (use.lineno, new))


def _as_expression(of: ast.stmt, arguments: ast.arguments, value: ast.expr, lines: Sequence[str]) -> Iterator[str]:
    """A function that only returns an expression, as a name for that; one that only calls another, as a name of the other."""
    assert isinstance(of, ast.FunctionDef)
    made = ast.unparse(ast.Lambda(arguments, value))
    if isinstance(value, ast.Call) and ast.unparse(value) == f"{ast.unparse(value.func)}({ast.unparse(arguments)})":
        made = ast.unparse(value.func)
    text = f"{' ' * of.col_offset}{of.name} = {made}\n"
    if len(text) <= WIDTH:
        yield "".join([*lines[: of.lineno - 1], text, *lines[of.end_lineno or 0 :]])


def _put_body(of: ast.FunctionDef, value: ast.expr, names: Sequence[ast.Name], lines: Sequence[str]) -> Iterator[str]:
    """The body of a function in the place of a line that binds what it returns."""
    use = _only_use(of, of.name, names)
    if use is not None:
        line = lines[use.lineno - 1]
        inside = lines[of.body[0].lineno - 1 : of.body[-1].lineno - 1]
        text = f"({ast.unparse(value)})" if isinstance(value, OPERATIONS) else ast.unparse(value)
        bound = line[: use.col_offset] + text + line[use.end_col_offset :].removeprefix("()")
        indent = line[: len(line) - len(line.lstrip())]
        yield _joined(lines, of, (use.lineno, textwrap.indent(textwrap.dedent("".join(inside)), indent) + bound))


def _put_call(of: ast.FunctionDef, nodes: Sequence[ast.AST], lines: Sequence[str]) -> Iterator[str]:
    """The body of a function in the place of the one statement that calls it, with what is passed for its parameters."""
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == of.name]
    parameters = [argument.arg for argument in of.args.args]
    for node in nodes:
        match node:
            case ast.Expr(ast.Call(ast.Name(of.name), passed, [])) if len(uses) == 1 and len(passed) == len(parameters):
                put = _Passed(dict(zip(parameters, passed, strict=True)))
                body = [ast.fix_missing_locations(put.visit(copy.deepcopy(one))) for one in of.body]
                text = textwrap.indent("\n".join(map(ast.unparse, body)), " " * node.col_offset) + "\n"
                if node.lineno == node.end_lineno and max(map(len, text.splitlines())) <= WIDTH:
                    yield _joined(lines, of, (node.lineno, text))


class _Passed(ast.NodeTransformer):
    """Puts in the place of parameters what is passed; a lambda without parameters that is called is what it returns."""

    def __init__(self, passed: dict[str, ast.expr]) -> None:
        self.passed = passed

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.passed.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match self.generic_visit(node):
            case ast.Call(ast.Lambda(arguments, body), [], []) if not ast.unparse(arguments):
                return body
        return node
