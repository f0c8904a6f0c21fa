"""The syntax tree of a text, the names in it, and the definitions that these names need."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping


@functools.lru_cache(maxsize=256)
def tree_of(text: str) -> ast.Module | None:
    """The syntax tree of a text, not to be changed; None if it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # ValueError: it has null bytes
        return None


def nodes(text: str) -> list[ast.AST]:
    """All nodes of a text's syntax tree; none if it is not Python."""
    tree = tree_of(text)
    return [] if tree is None else list(ast.walk(tree))


def identifiers(code: str | ast.stmt) -> frozenset[str]:
    """Every name in a text or a statement, including those of attributes, keywords and imports."""
    found: set[str] = set()
    for node in nodes(code) if isinstance(code, str) else ast.walk(code):
        match node:
            case ast.Name(name) | ast.Attribute(_, name) | ast.alias(name) | ast.keyword(str() as name):
                found.add(name)
    return frozenset(found)


def definitions_for(text: str, definitions: Mapping[str, str]) -> list[str]:
    """The definitions that names in a text need, and those that these definitions need, in their order.

    Raises SyntaxError if the text is not Python.
    """
    ast.parse(text)
    needed: set[str] = set()
    asking = [text]
    while asking:
        found = frozenset().union(*map(identifiers, asking)) & definitions.keys() - needed
        asking = [definitions[name] for name in found]
        needed |= found
    return [definition for name, definition in definitions.items() if name in needed]
