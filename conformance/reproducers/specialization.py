"""Taking a program written by hand for given arguments: what they decide is decided, and what is then unused is left out.

A program that is printed shows one case. Branches that its arguments never take are no part of it.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Mapping
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

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}


def folded(function: ast.FunctionDef, arguments: Mapping[str, Any]) -> list[ast.stmt]:
    """The body of a function without its docstring, for these arguments. Those that it assigns to are bound at its start."""
    function = copy.deepcopy(function)  # a transformer changes what it visits
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    stored = {node.id for node in _names(body) if not isinstance(node.ctx, ast.Load)} | _parameters(body)
    fixed = {name: value for name, value in arguments.items() if name not in stored}
    bound = [ast.Assign([ast.Name(name, ast.Store())], _literal(value)) for name, value in arguments.items() if name in stored]
    folding = _Folding(fixed, body)
    body = [*bound, *folding.block(body)]
    return _used(body)


def _literal(value: Any) -> ast.expr:
    return value if isinstance(value, ast.expr) else ast.parse(repr(value), mode="eval").body


def _value(node: ast.expr) -> tuple[bool, Any]:
    """Whether an expression is a literal, and which."""
    try:
        return True, ast.literal_eval(node)
    except ValueError:
        return False, None


def _names(body: list[ast.stmt]) -> list[ast.Name]:
    return [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)]


def _read(body: list[ast.stmt]) -> Counter[str]:
    return Counter(node.id for node in _names(body) if isinstance(node.ctx, ast.Load))


def _parameters(body: list[ast.stmt]) -> set[str]:
    """The names that functions inside have for their arguments."""
    return {node.arg for statement in body for node in ast.walk(statement) if isinstance(node, ast.arg)}


def _items(over: ast.expr) -> list[ast.expr] | None:
    """What a loop goes through, if that is written there; for ranges, two items stand for any number above one."""
    match over:
        case ast.List(items) | ast.Tuple(items):
            return None if any(isinstance(item, ast.Starred) for item in items) else items
        case ast.Call(ast.Name("range"), [ast.Constant(int() as count)], []):
            return [_literal(number) for number in range(min(count, 2))]
        case ast.Call(ast.Name("enumerate"), [inner], []):
            inside = _items(inner)
            return None if inside is None else [ast.Tuple([_literal(n), item], ast.Load()) for n, item in enumerate(inside)]
    return None


def _formatted(value: ast.expr) -> ast.expr:
    """A part of an f-string, as the text that it always gives."""
    match value:
        case ast.FormattedValue(ast.Constant(constant), -1, None):
            return ast.Constant(str(constant))
    return value


def _has_no_effect(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.Lambda)


class _Folding(ast.NodeTransformer):
    """Puts literals in place of names and takes the branches that they decide."""

    def __init__(self, values: Mapping[str, Any], body: list[ast.stmt]) -> None:
        self.values = dict(values)
        self.bound = Counter(node.id for node in _names(body) if not isinstance(node.ctx, ast.Load))
        self.bound.update(_parameters(body))
        self.read = _read(body)

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

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """A loop over at most one literal is what it does once."""
        over = self.visit(node.iter)
        items = _items(over)
        leaves = any(isinstance(inside, ast.Break | ast.Continue) for one in node.body for inside in ast.walk(one))
        if items is None or len(items) > 1 or leaves:
            return [ast.For(node.target, over, self.block(node.body), self.block(node.orelse))]
        once: list[ast.stmt] = []
        for item in items:
            if isinstance(node.target, ast.Name) and _value(item)[0] and self._is_of(node, node.target.id):
                self.values[node.target.id] = _value(item)[1]
            else:
                once.append(ast.Assign([node.target], item))
            once += self.block(node.body)
        return [*once, *self.block(node.orelse)]

    def _is_of(self, loop: ast.For, name: str) -> bool:
        """Whether a name is bound by this loop alone, and read in it alone."""
        return self.bound[name] == 1 and self.read[name] == _read(loop.body)[name]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        visited = cast(ast.BinOp, self.generic_visit(node))
        (known, left), (also, right) = _value(visited.left), _value(visited.right)
        combine = _ARITHMETIC.get(type(visited.op))
        if combine is None or not (known and also and isinstance(left, int) and isinstance(right, int)):
            return visited
        return _literal(combine(left, right))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        visited = cast(ast.JoinedStr, self.generic_visit(node))
        values = [_formatted(value) for value in visited.values]
        if any(isinstance(value, ast.FormattedValue) for value in values):
            return ast.JoinedStr(values)
        return ast.Constant("".join(str(value.value) for value in values if isinstance(value, ast.Constant)))

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
        if not known or not isinstance(visited.ctx, ast.Load):
            return visited
        if isinstance(visited.value, ast.Dict) and all(map(_has_no_effect, visited.value.values)):
            keys = [_value(key) if key is not None else (False, None) for key in visited.value.keys]
            chosen = [value for key, value in zip(keys, visited.value.values, strict=True) if key == (True, index)]
            return chosen[-1] if chosen and all(known for known, _ in keys) else visited
        return _literal(value[index]) if whole else visited


def _used(body: list[ast.stmt]) -> list[ast.stmt]:
    """The body without functions, classes and imports that nothing in it refers to."""
    while True:
        reads = _read(body)
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
