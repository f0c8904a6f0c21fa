"""Syntax trees of modules: as text that is the same under every version of Python, and what they define, import and name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

_NOT_CODE = frozenset({"ctx", "type_comment", "type_ignores"})
Import = ast.Import | ast.ImportFrom


def canonical(node: object) -> str:
    """The text of a syntax tree: the same for the same code under every version of Python, unlike that of ``ast.dump``."""
    match node:
        case ast.Constant(value):
            return f"{type(value).__name__} {value!a}"
        case ast.AST():
            fields = ((name, _whole(value)) for name, value in ast.iter_fields(node) if name not in _NOT_CODE)
            parts = (f"{name}={canonical(value)}" for name, value in fields if value not in (None, []))
            return f"{type(node).__name__}({','.join(parts)})"
        case list():
            return f"[{','.join(map(canonical, node))}]"
    return ascii(node)


def _whole(value: object) -> object:
    """A field as it is hashed: without docstrings, and with adjacent texts of an f-string joined into one."""
    if not isinstance(value, list):
        return value
    found: list[object] = []
    for one in value:
        before = found[-1] if found else None
        if isinstance(one, ast.Constant) and isinstance(before, ast.Constant) and _is_formatted(value):
            found[-1] = ast.Constant(f"{before.value!s}{one.value!s}")
        elif not _is_nothing(one):
            found.append(one)
    return found


def _is_formatted(values: list[object]) -> bool:
    return any(isinstance(one, ast.FormattedValue) for one in values)


def _is_nothing(statement: object) -> bool:
    """Whether it is a docstring or another lone constant, or ``pass``."""
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


@dataclass(frozen=True)
class Target:
    """What an import binds a name to: a module, or the name to take from it."""

    module: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """The statements of a module by the names that they bind, what its imports bind, and the statements that bind none."""

    name: str
    is_package: bool
    definitions: dict[str, list[ast.AST]] = field(default_factory=dict)
    imports: dict[str, tuple[Target, Import]] = field(default_factory=dict)
    effects: list[ast.AST] = field(default_factory=list)

    def add(self, statement: ast.stmt, without: Collection[str] = ()) -> None:
        """Add a statement of the module, without some methods and decorators."""
        if _is_nothing(statement) or _is_command(statement):
            return
        if isinstance(statement, ast.FunctionDef):
            statement.decorator_list = [one for one in statement.decorator_list if self._decorator(one) not in without]
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for one in imports(ast.walk(statement)):
                self.imports.update({name: (target, one) for name, target in self.targets(one)})
        if isinstance(statement, ast.ClassDef):
            statement.body = [one for one in statement.body if f"{self.name}:{statement.name}.{_name(one)}" not in without]
        if isinstance(statement, Import) or _is_for_types(statement):
            return
        bound = _bound(statement)
        for name in bound:
            self.definitions.setdefault(name, []).append(statement)
        if not bound or not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.AugAssign):
            self.effects.append(statement)

    def _decorator(self, expression: ast.expr) -> str:
        """The function that a decorator calls, as ``"pkg.mod:name"``; "" if it is not imported by name."""
        match expression:
            case ast.Call(ast.Name(name)) if name in self.imports:
                source = self.imports[name][0]
                return f"{source.module}:{'.'.join(source.names)}"
        return ""

    def targets(self, statement: Import) -> Iterator[tuple[str, Target]]:
        """The names that an import in this module binds, and to what."""
        if isinstance(statement, ast.Import):
            for one in statement.names:
                first = one.name.partition(".")[0]
                yield (one.asname, Target(one.name)) if one.asname else (first, Target(first))
            return
        parts = self.name.split(".")
        above = parts[: len(parts) - statement.level + self.is_package] if statement.level else []
        source = ".".join([*above, *filter(None, [statement.module])])
        for one in statement.names:
            yield one.asname or one.name, Target(source, (one.name,))


def _name(statement: ast.stmt) -> str:
    return statement.name if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ""


def _is_command(statement: ast.stmt) -> bool:
    """Whether it runs only if the module is run as a command."""
    match statement:
        case ast.If(ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")])):
            return True
    return False


def _is_for_types(statement: ast.stmt) -> bool:
    match statement:
        case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(_, "TYPE_CHECKING")):
            return True
    return False


def imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """The imports among some nodes."""
    yield from (node for node in nodes if isinstance(node, Import))


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module binds there."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    inside = [node.name for node in ast.walk(statement) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    stored = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    return list(dict.fromkeys([*inside, *stored]))


def parsed(name: str, text: str, *, is_package: bool, without: Collection[str] = (), declares: bool = True) -> Module:
    """A module of this name and text. Raises SyntaxError.

    ``without`` has methods to leave out, such as ``"pkg.mod:Class.method"``, and decorators, such as ``"pkg.mod:decorator"``.
    If ``declares`` is False, the known failures of its implementation are left out, too, and what only they use.
    """
    made = Module(name, is_package)
    tree = ast.parse(text)
    for statement in tree.body if declares else _undeclared(tree):
        made.add(statement, without)
    return made


def _undeclared(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a module without its known failures: ``known`` of what makes an ``Implementation``."""
    declared: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("Implementation")):
                declared += [one.value for one in node.keywords if one.arg == "known"]
                node.keywords = [one for one in node.keywords if one.arg != "known"]
    left, unused = [*tree.body], _used(declared)
    while unused:
        kept = [one for one in left if not _is_unused(one, unused, left)]
        if len(kept) == len(left):
            return left
        unused |= _used(one for one in left if one not in kept)
        left = kept
    return left


def _is_unused(statement: ast.stmt, names: Collection[str], among: Iterable[ast.stmt]) -> bool:
    """Whether a statement binds only names among these that no other statement uses; an import is rid of such names."""
    used = _used(one for one in among if one is not statement and not isinstance(one, Import))
    if isinstance(statement, Import):
        gone = [one for one in statement.names if (name := one.asname or one.name) in names and name not in used]
        statement.names = [one for one in statement.names if one not in gone]
        return not statement.names
    bound = _bound(statement)
    return bool(bound) and all(name in names and name not in used for name in bound)


def _used(trees: Iterable[ast.AST]) -> set[str]:
    names = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def entries(statement: ast.AST, key: str) -> Iterator[ast.AST]:
    """The values for a key in the dicts of a statement."""
    for one in (node for node in ast.walk(statement) if isinstance(node, ast.Dict)):
        for found, value in zip(one.keys, one.values, strict=True):
            if isinstance(found, ast.Constant) and found.value == key:
                yield value


def evaluated(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without docstrings."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if not _is_nothing(node):
            yield node
            pending += ast.iter_child_nodes(node)


def chains(nodes: list[ast.AST]) -> Iterator[list[str]]:
    """Names with the attributes that follow them: ``["torch", "nn", "Linear"]``."""
    inside = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if id(node) in inside:
            continue
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            yield [node.id, *reversed(names)]
