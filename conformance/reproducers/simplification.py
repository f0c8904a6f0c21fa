"""Simpler expressions, fewer parameters, names bound at once or not at all: so that a script that is too long has less.

Each is one step, and is to be tried: none is sure to do the same.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from conformance.reproducers.script_parts import WIDTH
from conformance.reproducers.script_syntax import first_modules, with_modules

Edit = tuple[ast.expr | ast.arg, str]


def simpler(program: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """The script of these lines with one expression of its program simpler, one parameter less, or names bound at once."""
    blocks = [node for statement in program for node in ast.walk(statement)]
    nodes = [node for node in blocks if isinstance(node, ast.expr)]
    for node in blocks:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            for position in reversed(range(len(node.args.args))):
                yield from _without_parameter(node, position, blocks, lines)
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if isinstance(block, list):
                yield from _bound_at_once(block, nodes, lines)
                yield from _returned_at_once(block, lines)
                yield from _filled_at_once(block, lines)
        if isinstance(node, ast.Try):
            yield from _suppressed(node, lines)
    for node in nodes:
        for text in _simpler_than(node):
            yield from _edited(lines, [(node, text)])


def _simpler_than(node: ast.expr) -> Iterator[str]:
    """What is inside of an expression, and a call with one thing for two."""
    match node:
        case ast.BinOp(left, _, right):
            yield from (_inside(left), _inside(right))
        case ast.Call(ast.Name("checkpoint"), [function, *passed], []) if passed:
            yield f"{_inside(function)}({', '.join(map(ast.unparse, passed))})"
            yield from map(_inside, passed)
        case ast.Call(ast.Attribute(ast.Name("torch")), [*passed], []):
            yield from map(_inside, passed)
        case ast.Call(ast.Attribute(of), [], []):
            yield _inside(of)
        case ast.Call(ast.Lambda(ast.arguments(args=[]), body), [], []) | ast.Subscript(ast.Dict([_], [body])):
            yield _inside(body)
    match node:
        case ast.Call(function, [*passed], []):
            names = [one.id if isinstance(one, ast.Name) else "" for one in passed]
            for number, old in enumerate(names):
                for name in dict.fromkeys(names):
                    if name and old and name != old:
                        changed = [*passed[:number], ast.Name(name), *passed[number + 1 :]]
                        yield f"{ast.unparse(function)}({', '.join(map(ast.unparse, changed))})"


def _inside(node: ast.expr) -> str:
    """An expression as text that stands anywhere."""
    simple = isinstance(node, ast.Name | ast.Call | ast.Constant | ast.Attribute | ast.Subscript | ast.Tuple | ast.List)
    return ast.unparse(node) if simple else f"({ast.unparse(node)})"


def _edited(lines: Sequence[str], edits: Sequence[Edit], gone: Sequence[ast.stmt] = ()) -> Iterator[str]:
    """The lines with texts in the place of nodes, if each is on one line and what it becomes fits, and without statements."""
    new = list(lines)
    for node, text in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):
        if node.lineno != node.end_lineno:
            return
        line = new[node.lineno - 1]
        new[node.lineno - 1] = line[: node.col_offset] + text + line[node.end_col_offset :]
        if len(new[node.lineno - 1]) > WIDTH:
            return
    dropped = {number for one in gone for number in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    yield "".join(line for number, line in enumerate(new, 1) if number not in dropped)


def _without_parameter(
    of: ast.FunctionDef | ast.Lambda, position: int, nodes: Sequence[ast.AST], lines: Sequence[str]
) -> Iterator[str]:
    """A function without a parameter that it makes no use of, where one call is of it or is handed it, and that call."""
    names = [one.arg for one in of.args.args]
    used = {node.id for node in ast.walk(of) if isinstance(node, ast.Name)}
    if names[position] in used or ast.unparse(of.args) != ", ".join(names):
        return
    left = [*names[:position], *names[position + 1 :]]
    calls: list[Edit] = []
    for node in nodes:
        match node:
            case ast.Call(function, [*passed], []):
                places = [number for number, one in enumerate([function, *passed]) if _is(one, of)]
                for place in places:
                    texts = [ast.unparse(one) for one in [function, *passed]]
                    if isinstance(of, ast.Lambda):
                        texts[place] = f"({ast.unparse(_lambda(left, of.body))})"
                    del texts[place + 1 + position : place + 2 + position]
                    calls.append((node, f"{texts[0]}({', '.join(texts[1:])})"))
    if len(calls) == 1:
        line = lines[of.lineno - 1]
        shorter = line if isinstance(of, ast.Lambda) else line.replace(f"({', '.join(names)})", f"({', '.join(left)})", 1)
        for text in _edited(lines, calls):
            yield text.replace(line, shorter, 1)


def _is(node: ast.expr, of: ast.FunctionDef | ast.Lambda) -> bool:
    return node is of if isinstance(of, ast.Lambda) else isinstance(node, ast.Name) and node.id == of.name


def _lambda(names: Sequence[str], body: ast.expr) -> ast.Lambda:
    arguments = [ast.arg(name) for name in names]
    return ast.Lambda(ast.arguments(posonlyargs=[], args=arguments, kwonlyargs=[], kw_defaults=[], defaults=[]), body)


def _bound_at_once(block: Sequence[ast.stmt], nodes: Sequence[ast.expr], lines: Sequence[str]) -> Iterator[str]:
    """``a, b = value`` in the place of ``c = value``, ``a = c[0]`` and ``b = c[1]``, where nothing else is made of ``c``."""
    for number, statement in enumerate(block):
        match statement:
            case ast.Assign([ast.Name(name) as target], _):
                taken: list[ast.Assign] = []
                for one in block[number + 1 :]:
                    match one:
                        case ast.Assign([ast.Name()], ast.Subscript(ast.Name(of), ast.Constant(int() as index))) if (
                            of == name and index == len(taken)
                        ):
                            taken.append(one)
                        case _:
                            break
                uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
                if len(taken) > 1 and uses == len(taken) + 1:
                    bound = ", ".join(ast.unparse(one.targets[0]) for one in taken)
                    yield from _edited(lines, [(target, bound)], taken)


def _returned_at_once(block: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """``return`` of an expression in the place of binding it first."""
    for statement, following in itertools.pairwise(block):
        match statement, following:
            case ast.Assign([ast.Name(name)], value), ast.Return(ast.expr() as result):
                uses = [node for node in ast.walk(result) if isinstance(node, ast.Name) and node.id == name]
                if len(uses) == 1:
                    yield from _edited(lines, [(uses[0], _inside(value))], [statement])


def _filled_at_once(block: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[str]:
    """A dict with its first entry in the place of an empty one that gets it."""
    for statement, following in itertools.pairwise(block):
        match statement, following:
            case (
                ast.Assign([ast.Name(name)], ast.Dict([], []) as empty),
                ast.Assign([ast.Subscript(ast.Name(of), ast.Constant() as key)], value),
            ) if of == name:
                yield from _edited(lines, [(empty, f"{{{ast.unparse(key)}: {ast.unparse(value)}}}")], [following])


def _suppressed(node: ast.Try, lines: Sequence[str]) -> Iterator[str]:
    """A block whose error is suppressed in the place of one whose error is handled."""
    match node.handlers:
        case [ast.ExceptHandler(ast.Name(error))] if not node.orelse and not node.finalbody:
            new = list(lines)
            new[node.lineno - 1] = f"{' ' * node.col_offset}with contextlib.suppress({error}):\n"
            new[node.handlers[0].lineno - 1 : node.end_lineno] = []
            text = "".join(new)
            yield with_modules(text, {*first_modules(text), "contextlib"})
