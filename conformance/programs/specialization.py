"""Specializes a function for given arguments: expressions and branches that they decide are replaced, unused code is removed.

So a printed program shows one case, and a script only what it measures. For 24 laws that torch-reentrant does not keep,
programs without this were 6 lines longer before they were reduced (54 on average), and half a line longer after (38); 17
scripts instead of 12 had more than 45 lines before, one either way after. As that is little, it handles literals and branches,
but no calls. Without it, the ends of scripts would have all branches in them.
"""

from __future__ import annotations

import ast
import pickle
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

_OPERATIONS = (ast.UnaryOp, ast.BinOp, ast.Compare, ast.BoolOp, ast.Subscript)
_SYMBOLS = (ast.expr_context, ast.unaryop, ast.operator, ast.cmpop, ast.boolop)
_KNOWN = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, *_OPERATIONS, *_SYMBOLS)


def folded(function: ast.FunctionDef, arguments: Mapping[str, Any]) -> list[ast.stmt]:
    """The body of a function without its docstring, for these arguments. Those that it assigns to are bound at its start."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    stored = {node.id for node in _names(body) if not isinstance(node.ctx, ast.Load)} | _parameters(body)
    bound = [ast.Assign([ast.Name(name, ast.Store())], _literal(value)) for name, value in arguments.items() if name in stored]
    specialize = _Specialize({name: value for name, value in arguments.items() if name not in stored})
    copied = pickle.loads(pickle.dumps(body))  # a transformer changes what it visits; copy.deepcopy takes ten times as long
    return _used([*bound, *specialize.block(copied)])


def _literal(value: Any) -> ast.expr:
    return value if isinstance(value, ast.expr) else ast.parse(repr(value), mode="eval").body


def _names(body: list[ast.stmt]) -> list[ast.Name]:
    return [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)]


def _parameters(body: list[ast.stmt]) -> set[str]:
    """The parameter names of functions inside."""
    return {node.arg for statement in body for node in ast.walk(statement) if isinstance(node, ast.arg)}


def _value(node: ast.expr) -> tuple[bool, Any]:
    """Whether an expression consists of literals alone, and its value."""
    if not all(isinstance(one, _KNOWN) and not isinstance(one, ast.Is | ast.IsNot) for one in ast.walk(node)):
        return False, None
    try:
        return True, eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<literals>", "eval"))
    except (ArithmeticError, LookupError, TypeError):  # which is what the program is to raise
        return False, None


class _Specialize(ast.NodeTransformer):
    """Puts literals in place of names and takes the branches that they decide."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        visited = [self.visit(statement) for statement in body]
        return [one for found in visited for one in (found if isinstance(found, list) else [found])]

    def visit(self, node: ast.AST) -> Any:
        visited = super().visit(node)
        if isinstance(visited, _OPERATIONS) and not isinstance(getattr(visited, "ctx", None), ast.Store | ast.Del):
            known, value = _value(visited)
            short = isinstance(value, int | str | None) or isinstance(visited, ast.Subscript)
            return _literal(value) if known and short else visited
        return visited

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _literal(self.values[node.id]) if node.id in self.values else node

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        test = self.visit(node.test)
        known, value = _value(test)
        if known:
            return self.block(node.body if value else node.orelse)
        return [ast.If(test, self.block(node.body) or [ast.Pass()], self.block(node.orelse))]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """Remove a loop that never runs, so that programs that differ only in it are one case."""
        match over := self.visit(node.iter):
            case ast.List([]) | ast.Tuple([]) | ast.Call(ast.Name("range"), [ast.Constant(0)], []):
                return self.block(node.orelse)
        return [ast.For(node.target, over, self.block(node.body) or [ast.Pass()], self.block(node.orelse))]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        known, value = _value(test)
        if known:
            return self.visit(node.body if value else node.orelse)
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        decides = isinstance(node.op, ast.Or)
        left: list[ast.expr] = []
        for index, operand in enumerate(map(self.visit, node.values)):
            known, value = _value(operand)
            if known and bool(value) is not decides and index < len(node.values) - 1:
                continue  # it decides nothing, and is not the value either
            left.append(operand)
            if known and bool(value) is decides:
                break
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Python warns of ``is`` with a literal where it compiles it."""
        visited = cast(ast.Compare, self.generic_visit(node))
        (known, left), (also, right) = _value(visited.left), _value(visited.comparators[0])
        match visited.ops:
            case [ast.Is() | ast.IsNot() as operator] if known and also:
                return ast.Constant((left is right) is isinstance(operator, ast.Is))
        return visited

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        values = [_formatted(self.visit(value)) for value in node.values]
        if any(isinstance(value, ast.FormattedValue) for value in values):
            return ast.JoinedStr(values)
        return ast.Constant("".join(str(value.value) for value in values if isinstance(value, ast.Constant)))


def _formatted(value: ast.expr) -> ast.expr:
    """A part of an f-string, as the text that it always gives."""
    match value:
        case ast.FormattedValue(ast.Constant(constant), -1, None):
            return ast.Constant(str(constant))
    return value


def _used(body: list[ast.stmt]) -> list[ast.stmt]:
    """The body without functions, classes and imports that nothing in it refers to."""
    while True:
        reads = Counter(node.id for node in _names(body) if isinstance(node.ctx, ast.Load))
        left = [statement for statement in body if any(reads[name] for name in _defined(statement)) or not _defined(statement)]
        if len(left) == len(body):
            return left
        body = left


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement defines, if that is all it does."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [] if statement.decorator_list else [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    return []
