"""Reads the syntax tree of a script or program: its parts, what it is about, and what it imports, names and calls.

A row has the text of a script but does not say what it measures, so whatever must be known of that is read from the text, here.
The frame of a script is what comes after its function ``run``.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection
from dataclasses import dataclass

from conformance.programs.notes import Role, read
from conformance.programs.syntax import nodes, tree_of

THREADS = ("threading", "concurrent.futures")
OURS = ("conformance", "impls")


@dataclass(frozen=True)
class Subject:
    """What a script is about, as its docstring says."""

    implementation: str
    law: str


def subject(script: str) -> Subject | None:
    """What a script is about; None if it is not a script of this suite."""
    tree = tree_of(script)
    about = tree and ast.get_docstring(tree, clean=False)
    implementation, _, rest = (about or "").partition(", law ")
    law, stop, _ = rest.partition(".")
    whole = implementation and stop and law.isidentifier() and "\n" not in implementation
    return Subject(implementation, law) if whole else None


def modules(text: str) -> frozenset[str]:
    """The modules that a text imports anywhere, and what it imports from them, by their whole names."""
    found: set[str] = set()
    for node in nodes(text):
        match node:
            case ast.Import(names):
                found |= {one.name for one in names}
            case ast.ImportFrom(str() as module, names):
                found |= {module, *(f"{module}.{one.name}" for one in names)}
    return frozenset(found)


def imports(text: str, names: Collection[str]) -> bool:
    """Whether a text imports one of these modules, or from one."""
    return any(f"{one}.".startswith(f"{name}.") for one in modules(text) for name in names)


def has_threads(program: str) -> bool:
    """Whether a program starts threads, so that two runs of it may differ."""
    return imports(program, THREADS)


def dotted_names(text: str) -> frozenset[str]:
    """The names in a text, and attributes with what is before their dots: ``a``, ``a.b``, ``a.b.c``."""
    return frozenset(filter(None, map(_dotted, nodes(text))))


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(of, name) if before := _dotted(of):
            return f"{before}.{name}"
    return ""


def notes_costs(program: str) -> bool:
    """Whether a program notes measurements, which need not equal plain's."""
    for node in nodes(program):
        match node:
            case ast.Call(ast.Name("note"), [ast.Constant(str() as label), *_]) if read(label).role is Role.COST:
                return True
    return False


@dataclass(frozen=True)
class Parts:
    """A script: its ``head``, which ends with what binds the implementation, its ``program``, and how it ends, its ``tail``."""

    head: str
    program: str
    tail: str

    def text(self) -> str:
        return f"{self.head}\n\n{self.program}\n\n{self.tail}"


def parts(script: str, binding: str) -> Parts:
    """The parts of a script that has these lines to bind the implementation. Raises ValueError if it has not."""
    before, bound, rest = script.partition(binding)
    lines = rest.splitlines()
    ends = [one.end_lineno for one in ast.parse(rest).body if isinstance(one, ast.FunctionDef) and one.name == "run"]
    if not ends:
        raise ValueError(f"there is no program after the lines {binding!r}")
    texts = ("\n".join(lines[: ends[0]]), "\n".join(lines[ends[0] :]))
    program, tail = (text.strip("\n") for text in texts)
    return Parts(before + bound, program, f"{tail}\n")


def frame(script: str) -> list[ast.stmt]:
    """The statements after ``run``; all of them if there is no such function."""
    tree = tree_of(script)
    body = [] if tree is None else tree.body
    names = [getattr(one, "name", "") for one in body]
    return body[names.index("run") + 1 :] if "run" in names else body


def frame_calls(script: str, name: str) -> bool:
    """Whether the frame of a script calls the function of this dotted name."""
    inside = (node for one in frame(script) for node in ast.walk(one))
    return any(isinstance(node, ast.Call) and _dotted(node.func) == name for node in inside)


def unparse(tree: ast.AST) -> str:
    """The text of a syntax tree, without the blank lines that Python puts around functions inside of others."""
    return re.sub(r"\n{2,}(?= )", "\n", ast.unparse(ast.fix_missing_locations(tree)).strip("\n"))


def has_status(script: str) -> bool:
    """Whether a script's status says what it measured. True for a text that is not Python, as running it shows why.

    It exits by sys.exit, or at its end by os._exit, as scripts for ranks do. Elsewhere os._exit ends what has failed.
    """
    if tree_of(script) is None or frame_calls(script, "sys.exit"):
        return True
    match frame(script)[-1:]:
        case [ast.Expr(ast.Call(func=function))]:
            return _dotted(function) == "os._exit"
    return False


def ends_what_hangs(script: str) -> bool:
    """Whether a script ends itself with status 1 if its program hangs."""
    return frame_calls(script, "faulthandler.dump_traceback_later")


def without(text: str, statements: Collection[ast.stmt]) -> str:
    """The text without the lines of statements."""
    gone = {number for one in statements for number in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    return "".join(line for number, line in enumerate(text.splitlines(keepends=True), 1) if number not in gone)


def first_import(script: str) -> ast.Import:
    """The first import of modules. Raises ValueError if there is none."""
    tree = tree_of(script)
    for one in tree.body if tree else ():
        if isinstance(one, ast.Import):
            return one
    raise ValueError("the script imports no modules; one that this suite has made does")


def with_modules(script: str, names: Collection[str], comment: str = "") -> str:
    """The script with these modules in its first import, sorted, and a comment after it, which must not be there yet."""
    first = first_import(script)
    lines = script.splitlines(keepends=True)
    rest = lines[first.lineno - 1][first.end_col_offset :]
    lines[first.lineno - 1] = f"import {', '.join(sorted(names))}{comment}{rest}"
    return "".join(lines)


def first_modules(script: str) -> set[str]:
    """The modules in the first import of a script."""
    return {one.name for one in first_import(script).names}


def used_modules(script: str) -> set[str]:
    """The modules in the first import of a script that something in it uses."""
    return first_modules(script) & dotted_names(script)


def is_bound(script: str) -> bool:
    """Whether a script is Python and every name in it is bound somewhere; otherwise it need not be run."""
    tree = tree_of(script)
    if tree is None:
        return False
    used, bound = set[str](), {"__name__", *dir(builtins)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Load() | ast.Del()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.ExceptHandler(_, str() as name):
                bound.add(name)
            case ast.alias(name, other):
                bound.add((other or name).partition(".")[0])
    return used <= bound


def waits(script: str) -> list[str]:
    """The statements by which threads wait for one another, and loops that consist of one; without them two runs may differ."""
    found = []
    for node in nodes(script) if has_threads(script) else ():
        match node:
            case (
                ast.Expr(ast.Call(ast.Attribute(_, "join" | "wait" | "set" | "acquire" | "release")))
                | ast.For(body=[ast.Expr(ast.Call(ast.Attribute(_, "join")))])
            ):
                found.append(ast.unparse(node))
    return sorted(found)
