"""Taking a program written by hand for given arguments: what they decide is decided, and what is then unused is left out.

A program that is printed shows one case. Branches that its arguments never take are no part of it.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

_COMPARE = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}


def folded(function: ast.FunctionDef, arguments: Mapping[str, Any]) -> list[ast.stmt]:
    """The body of a function without its docstring, for these arguments. Those that it assigns to are bound at its start."""
    function = copy.deepcopy(function)  # a transformer changes what it visits
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    stored = {node.id for node in _names(body) if not isinstance(node.ctx, ast.Load)} | _parameters(body)
    fixed = {name: value for name, value in arguments.items() if name not in stored}
    bound = [ast.Assign([ast.Name(name, ast.Store())], _literal(value)) for name, value in arguments.items() if name in stored]
    folding = _Folding(fixed)
    body = [*bound, *folding.block(body)]
    return _used(body)


def _literal(value: Any) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _value(node: ast.expr) -> tuple[bool, Any]:
    """Whether an expression is a literal, and which."""
    try:
        return True, ast.literal_eval(node)
    except ValueError:
        return False, None


def _names(body: list[ast.stmt]) -> list[ast.Name]:
    return [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)]


def _parameters(body: list[ast.stmt]) -> set[str]:
    """The names that functions inside have for their arguments."""
    return {node.arg for statement in body for node in ast.walk(statement) if isinstance(node, ast.arg)}


class _Folding(ast.NodeTransformer):
    """Puts literals in place of names and takes the branches that they decide."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            visited = self.visit(statement)
            found += visited if isinstance(visited, list) else [visited]
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _literal(self.values[node.id]) if node.id in self.values else node

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        test = self.visit(node.test)
        known, value = _value(test)
        if known:
            return self.block(node.body if value else node.orelse)
        return [ast.If(test, self.block(node.body) or [ast.Pass()], self.block(node.orelse))]

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

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        known, value = _value(operand)
        return ast.Constant(not value) if known and isinstance(node.op, ast.Not) else ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        visited = cast(ast.Compare, self.generic_visit(node))
        operands = [_value(operand) for operand in (visited.left, *visited.comparators)]
        if len(operands) != 2 or not all(known for known, _ in operands):
            return visited
        return ast.Constant(_COMPARE[type(visited.ops[0])](operands[0][1], operands[1][1]))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        visited = cast(ast.Call, self.generic_visit(node))
        match visited:
            case ast.Call(ast.Name("getattr"), [value, ast.Constant(str() as name)], []) if name.isidentifier():
                return ast.Attribute(value, name, ast.Load())
        return visited

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        visited = cast(ast.Subscript, self.generic_visit(node))
        (known, index), (whole, value) = _value(visited.slice), _value(visited.value)
        return _literal(value[index]) if known and whole and isinstance(visited.ctx, ast.Load) else visited


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
