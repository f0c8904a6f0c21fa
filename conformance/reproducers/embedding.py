"""Functions and classes of this project as source code that a script can contain.

Annotations and docstrings are left out. Names that a module imports from torch or Python are written in full, so that a script
needs only ``import torch``. Definitions of this project that they use come before them.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from conformance.programs.specialization import folded
from conformance.reproducers.script_syntax import OURS, unparse

_Definition = TypeVar("_Definition", ast.FunctionDef, ast.ClassDef)


class Embedding:
    """The definitions in a script by name, each after those that it uses."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add(self, definition: Any, name: str = "") -> None:
        """Add a function or class, under another name if one is given."""
        tree = bare(definition)
        tree.name = name or tree.name
        if tree.name not in self.texts:
            self.texts[tree.name] = self._text([tree], definition)

    def body(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
        """The body of a function, specialized for the arguments that it takes. What it returns is bound to ``seen``."""
        tree = bare(function)
        assert isinstance(tree, ast.FunctionDef)
        body = folded(tree, {one.arg: arguments[one.arg] for one in tree.args.args if one.arg in arguments})
        match body:
            case [*before, ast.Return(ast.Name("seen"))]:
                body = before
            case [*before, ast.Return(ast.expr() as value)]:
                body = [*before, ast.Assign([ast.Name("seen", ast.Store())], value)]
        return self._text(body, function)

    def _text(self, statements: Sequence[ast.stmt], origin: Any) -> str:
        whole = _WholeNames(vars(sys.modules[origin.__module__]), statements)
        lines = [unparse(whole.visit(one)) for one in statements]
        for definition in whole.ours.values():
            self.add(definition)
        return "\n".join(lines)


@functools.cache
def _source(definition: Any) -> str:
    return textwrap.dedent(inspect.getsource(definition))


def bare(definition: Any) -> ast.FunctionDef | ast.ClassDef:
    """The syntax tree of a function or class, without annotations and docstrings."""
    tree = _Bare().visit(ast.parse(_source(definition)).body[0])
    assert isinstance(tree, ast.FunctionDef | ast.ClassDef)
    return tree


class _Bare(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        return self._undocumented(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.bases = [one.value if isinstance(one, ast.Subscript) else one for one in node.bases]
        return self._undocumented(node)

    def _undocumented(self, node: _Definition) -> _Definition:
        node.body = node.body[ast.get_docstring(node) is not None :]
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        return None if node.value is None else ast.Assign([node.target], node.value)


class _WholeNames(ast.NodeTransformer):
    """Writes names of a module in full, and collects those that this project defines."""

    def __init__(self, names: Mapping[str, Any], statements: Sequence[ast.stmt]) -> None:
        bound: set[str] = set()
        for node in (node for one in statements for node in ast.walk(one)):
            match node:
                case ast.arg(name) | ast.Name(name, ast.Store()) | ast.FunctionDef(name) | ast.ClassDef(name):
                    bound.add(name)
        self.names = {name: value for name, value in names.items() if name not in bound}
        self.ours: dict[str, Any] = {}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.names.get(node.id)
        module = getattr(value, "__module__", "")
        if inspect.ismodule(value) or not module or isinstance(node.ctx, ast.Store):
            return node
        if module.partition(".")[0] in OURS:
            self.ours[node.id] = value
            return node
        return ast.parse(f"{module}.{getattr(value, '__qualname__', node.id)}", mode="eval").body
