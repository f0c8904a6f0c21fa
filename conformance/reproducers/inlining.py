"""A variable that is used once is put where it is used, so that a script that is too long has fewer lines.

Of eleven such passes over expressions, functions and parameters this one is kept. Of the 113 longest published scripts of
built-in implementations, made anew, all of them together changed 21, of which 2 had more than 45 lines without them (49).
This one alone brings these to 43, each other one to 47 at the least. The scripts of 124 other laws came to at most 38 lines
without any of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from conformance.reproducers.script_syntax import WIDTH, identifiers

LEAVES = {"requires_grad", "requires_grad_"}  # a line that makes a leaf reads best by itself
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.UnaryOp)


def put_where_used(program: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """The script of these lines with one variable of its program less. Each is to be tried: none is sure to do the same."""
    nodes = [node for statement in program for node in ast.walk(statement)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], value) if identifiers(node).isdisjoint(LEAVES):
                use = _only_use(node, name, names)
                if use is not None:
                    yield from _put(node, value, use, lines)


def _only_use(of: ast.Assign, name: str, names: Sequence[ast.Name]) -> ast.Name | None:
    """Where a name is used that this statement alone binds, if that is one place, and after it."""
    uses = [node for node in names if node.id == name and isinstance(node.ctx, ast.Load)]
    bound = [node for node in names if node.id == name and isinstance(node.ctx, ast.Store)]
    return uses[0] if len(uses) == len(bound) == 1 and uses[0].lineno > (of.end_lineno or 0) else None


def _put(of: ast.Assign, value: ast.expr, use: ast.Name, lines: Sequence[str]) -> Iterator[str]:
    line = lines[use.lineno - 1]
    text = f"({ast.unparse(value)})" if isinstance(value, OPERATIONS) else ast.unparse(value)
    new = line[: use.col_offset] + text + line[use.end_col_offset :]
    if len(new) <= WIDTH:
        kept = (number for number in range(1, len(lines) + 1) if not of.lineno <= number <= (of.end_lineno or 0))
        yield "".join(new if number == use.lineno else lines[number - 1] for number in kept)
