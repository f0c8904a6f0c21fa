"""What is used once is put where it is used, variables and functions, and a call is its first argument, for fewer lines.

Of eleven such passes over expressions, functions and parameters these three are kept. Of the 113 longest published scripts of
built-in implementations, made anew, all of them together changed 21, of which 2 had more than 45 lines without them (49).
That for variables alone brings these to 43, each other one to 47 at the least. The other two are for peers, whose scripts are
longer by the lines that bind them: without them 6 of 580 had more than 45.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from conformance.reproducers.script_syntax import WIDTH, identifiers

LEAVES = {"requires_grad", "requires_grad_"}  # a line that makes a leaf reads best by itself
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp)


def put_where_used(program: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """The script of these lines with one name of its program less. Each is to be tried: none is sure to do the same."""
    nodes = [node for statement in program for node in ast.walk(statement)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], value) if identifiers(node).isdisjoint(LEAVES):
                use = _only_use(node, name, names)
                if use is not None:
                    yield from _put(node, value, use, lines)
            case ast.FunctionDef(name, decorator_list=[]):
                use = _only_use(node, name, names)
                if use is not None:
                    yield from (script for where in nodes for script in _called(node, where, use, lines))


def without_calls(program: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """The script of these lines with the first argument of a call in the place of that."""
    for node in (node for statement in program for node in ast.walk(statement)):
        match node:
            case ast.Call(_, [ast.Name() | ast.Call() as first, *_]) if node.lineno == node.end_lineno:
                line = lines[node.lineno - 1]
                new = line[: node.col_offset] + ast.unparse(first) + line[node.end_col_offset :]
                yield "".join(new if number == node.lineno else old for number, old in enumerate(lines, 1))


def _only_use(of: ast.Assign | ast.FunctionDef, name: str, names: Sequence[ast.Name]) -> ast.Name | None:
    """Where a name is used that this statement alone binds, if that is one place, and after it."""
    uses = [node for node in names if node.id == name and isinstance(node.ctx, ast.Load)]
    bound = [node for node in names if node.id == name and isinstance(node.ctx, ast.Store)]
    alone = len(uses) == 1 and len(bound) == isinstance(of, ast.Assign)
    return uses[0] if alone and uses[0].lineno > (of.end_lineno or 0) else None


def _put(of: ast.Assign, value: ast.expr, use: ast.Name, lines: Sequence[str]) -> Iterator[str]:
    line = lines[use.lineno - 1]
    text = f"({ast.unparse(value)})" if isinstance(value, OPERATIONS) else ast.unparse(value)
    new = line[: use.col_offset] + text + line[use.end_col_offset :]
    if len(new) <= WIDTH:
        yield from _replaced(of, use, new, lines)


def _called(of: ast.FunctionDef, where: ast.AST, use: ast.Name, lines: Sequence[str]) -> Iterator[str]:
    """The body of a function in the place of a statement that does nothing but call it with arguments by their places."""
    match where:
        case ast.Assign(targets, ast.Call(function, given, [])) if function is use:
            pass
        case ast.Expr(ast.Call(function, given, [])) | ast.Return(ast.Call(function, given, [])) if function is use:
            targets = []
        case _:
            return
    taken = [one.arg for one in of.args.args]
    body = [_Given(dict(zip(taken, given, strict=False))).visit(one) for one in copy.deepcopy(of.body)]
    if len(taken) != len(given) or where.lineno != where.end_lineno:
        return
    match body:
        case [*others, ast.Return(ast.expr() as value)] if not isinstance(where, ast.Return):
            body = [*others, ast.Assign(targets, value) if targets else ast.Expr(value)]
    text = "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in body)
    yield from _replaced(of, where, textwrap.indent(text, " " * where.col_offset) + "\n", lines)


class _Given(ast.NodeTransformer):
    """Puts arguments in place of parameters."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.given.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match self.generic_visit(node):
            case ast.Call(ast.Lambda(taken, body), [], []) if not ast.unparse(taken):
                return body
        return node


def _replaced(of: ast.stmt, use: ast.expr | ast.stmt, new: str, lines: Sequence[str]) -> Iterator[str]:
    """The script without a statement, and with another line in the place of that of its use."""
    kept = (number for number in range(1, len(lines) + 1) if not of.lineno <= number <= (of.end_lineno or 0))
    yield "".join(new if number == use.lineno else lines[number - 1] for number in kept)
