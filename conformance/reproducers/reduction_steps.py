"""The steps of a reduction, each of which makes a script smaller; the reduction tries which of them keep the fault.

A step changes the syntax tree of the script's program, renders the changed program as text, and undoes the change.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from conformance.programs.program import WIDTH
from conformance.programs.syntax import identifiers
from conformance.reproducers.script_syntax import Parts, parts, unparse
from conformance.reproducers.stand_ins import stand_ins

SCREEN = 39  # lines; a script of at most so many keeps its most readable layout
MOST = 45  # lines that a published script may have
LEAVES = {"requires_grad", "requires_grad_"}  # a line that makes a leaf stays a line of its own
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Pass, ast.Assert)


def smaller_ones(script: str, binding: str) -> Iterator[str]:
    """The script after each step: later statements go before earlier ones, statements before their parts.

    If a script does not fit a screen, further steps put what is used once (the value of a variable, the body of a function)
    where it is used, and replace a call by its first argument. This project's own functions are replaced last.
    """
    its = parts(script, binding)
    program = ast.parse(its.program)
    steps = [*_shorter(program, program.body)]
    if is_long(script):
        steps += _denser(program)
    yield from _that_fit(its, steps)
    for old, new, tail in stand_ins(program, its.tail):
        yield replace(its, program="\n".join([*_comments(its), _replaced(program, old, new)]), tail=tail).text()


def denser_ones(script: str, binding: str) -> Iterator[str]:
    """The script after each of the further steps alone, whether it fits a screen or not."""
    its = parts(script, binding)
    yield from _that_fit(its, _denser(ast.parse(its.program)))


def _denser(program: ast.Module) -> list[str]:
    return [*_with_values(program), *_with_bodies(program), *_without_calls(program)]


def _that_fit(its: Parts, programs: Iterable[str]) -> Iterator[str]:
    """The scripts with these programs in place of theirs, without those that have longer lines."""
    longest = max([WIDTH, *map(len, its.program.splitlines())])
    for text in programs:
        if max(map(len, text.splitlines()), default=0) <= longest:
            yield replace(its, program="\n".join([*_comments(its), text])).text()


def _comments(its: Parts) -> list[str]:
    return [line for line in its.program.splitlines() if line.startswith("#")]


def is_long(script: str) -> bool:
    """Whether a script does not fit a screen, even with one-statement blocks on the lines of their heads."""
    return len(join_lines(script).splitlines()) > SCREEN


def _shorter(whole: ast.Module, block: list[ast.stmt]) -> Iterator[str]:
    """The text of a program with one thing removed from a block."""
    for index in reversed(range(len(block))):
        statement = block[index]
        inside = _blocks(statement)
        if len(block) > 1 and (inside or "manual_seed" not in identifiers(statement)):
            yield _without(whole, [block], index)
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for body in inside:
                block[index : index + 1] = body
                yield unparse(whole)
                block[index : index + len(body)] = [statement]
            for node in _own_nodes(statement):
                yield from _simpler(whole, node)
        for body in inside:
            yield from _shorter(whole, body)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks in a statement, if it has any."""
    handlers = [one.body for one in getattr(statement, "handlers", [])]
    return [*filter(None, (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))), *handlers]


def _own_nodes(statement: ast.stmt) -> list[ast.AST]:
    """A statement and all that is in it, but for the statements in its blocks."""
    found: list[ast.AST] = [statement]
    for node in found:  # the loop itself extends the list
        found += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt | ast.ExceptHandler)]
    return found


def _simpler(whole: ast.Module, node: ast.AST) -> Iterator[str]:
    """The text of a program with one element removed from a node, or with one case of a conditional expression in its place."""
    match node:
        case ast.Tuple(elements, ast.Load()) | ast.List(elements, ast.Load()):
            lists: list[list[Any]] = [elements]
        case ast.With(elements) | ast.Import(elements) | ast.ImportFrom(_, elements):
            lists = [elements]
        case ast.Dict(keys, values):
            lists = [keys, values]
        case ast.IfExp(_, body, orelse):
            yield from (_replaced(whole, node, case) for case in (body, orelse))
            return
        case _:
            return
    if len(lists[0]) > 1:
        yield from (_without(whole, lists, index) for index in range(len(lists[0])))


def _with_values(whole: ast.Module) -> Iterator[str]:
    """The text of a program with the value of a variable in the one place that uses it, if that comes later."""
    names = _names(whole)
    for block, index, statement in _places(whole):
        match statement:
            case ast.Assign([ast.Name(name)], value) if identifiers(statement).isdisjoint(LEAVES):
                stored, *uses = sorted((one for one in names if one.id == name), key=lambda one: one.lineno)
                if isinstance(stored.ctx, ast.Store) and len(uses) == 1 and isinstance(uses[0].ctx, ast.Load):
                    del block[index]
                    yield _replaced(whole, uses[0], value)
                    block.insert(index, statement)


def _with_bodies(whole: ast.Module) -> Iterator[str]:
    """The text of a program with a function's body in place of the one statement that calls it and does nothing else."""
    uses = Counter(one.id for one in _names(whole))
    functions = {one.name: (block, one) for block, _, one in _places(whole) if isinstance(one, ast.FunctionDef)}
    for block, index, statement in _places(whole):
        match statement:
            case (
                ast.Expr(ast.Call(ast.Name(name), given, []))
                | ast.Return(ast.Call(ast.Name(name), given, []))
                | ast.Assign(_, ast.Call(ast.Name(name), given, []))
            ) if uses[name] == 1 and name in functions:
                around, function = functions[name]
                if function.decorator_list or len(function.args.args) != len(given):
                    continue
                body = _body(function, given, statement)
                block[index : index + 1] = body
                place = around.index(function)
                del around[place]
                yield unparse(whole)
                around.insert(place, function)
                block[index : index + len(body)] = [statement]


def _body(function: ast.FunctionDef, given: list[ast.expr], call: ast.stmt) -> list[ast.stmt]:
    """The body of a function for these arguments, to replace a statement that calls it."""
    values = _Values(dict(zip((one.arg for one in function.args.args), given, strict=True)))
    body = [values.visit(one) for one in copy.deepcopy(function.body)]
    match body[-1], call:
        case ast.Return(ast.expr() as value), ast.Assign(targets):
            body[-1] = ast.Assign(targets, value)
        case ast.Return(ast.expr() as value), ast.Expr():
            body[-1] = ast.Expr(value)
    return body


def _names(whole: ast.Module) -> list[ast.Name]:
    return [node for node in ast.walk(whole) if isinstance(node, ast.Name)]


def _places(whole: ast.Module) -> list[tuple[list[ast.stmt], int, ast.stmt]]:
    """The statements inside of others, each with its block and its place in that."""
    blocks = [block for one in ast.walk(whole) if isinstance(one, ast.stmt) for block in _blocks(one)]
    return [(block, index, statement) for block in blocks for index, statement in enumerate(block)]


def _without_calls(whole: ast.Module) -> Iterator[str]:
    """The text of a program with the first argument of a call in the place of the call."""
    for node in ast.walk(whole):
        match node:
            case ast.Call(_, [ast.Name() | ast.Call() as first, *_]):
                yield _replaced(whole, node, first)


def _without(whole: ast.Module, lists: list[list[Any]], index: int) -> str:
    """The text of a program without the elements of that index in lists of its tree."""
    taken = [elements.pop(index) for elements in lists]
    text = unparse(whole)
    for elements, one in zip(lists, taken, strict=True):
        elements.insert(index, one)
    return text


def _replaced(whole: ast.Module, old: ast.expr, new: ast.expr) -> str:
    """The text of a program with one expression replaced by another."""
    _Replace(old, new).visit(whole)
    text = unparse(whole)
    _Replace(new, old).visit(whole)
    return text


class _Values(ast.NodeTransformer):
    """Puts expressions in place of names."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def join_lines(script: str) -> str:
    """The script with each block of one simple statement on the line of its head, if both fit. Comments stay.

    Blank lines are removed but for the first, which ends the lines that bind the implementation.
    """
    lines = script.splitlines(keepends=True)
    tree = ast.parse(script)
    for head, body in reversed(list(_heads(tree))):
        line = lines[head - 1].rstrip()
        text = f"{line} {lines[body.lineno - 1].lstrip()}"
        one_line = body.lineno == body.end_lineno == head + 1 and line.endswith(":") and "#" not in line
        if one_line and len(text.rstrip("\n")) <= WIDTH:
            lines[head - 1], lines[body.lineno - 1] = text, ""
    text = "".join(lines)
    begin, blank, rest = text.partition("\n\n")
    shorter = begin + blank + "".join(filter(str.strip, rest.splitlines(keepends=True)))
    return shorter if ast.dump(ast.parse(shorter)) == ast.dump(tree) else text  # blank lines may be part of a string


def laid_out(script: str) -> str:
    """The script as it is published: unchanged if it fits a screen, else in fewer lines.

    If these are more than MOST, consecutive simple statements share lines, the last ones first, until there are at most MOST;
    of what binds the implementation, only those inside of functions and classes.
    """
    if len(script.splitlines()) <= SCREEN:
        return script
    joined = join_lines(script)
    begin, blank, rest = joined.partition("\n\n")
    lines = _packed(rest.splitlines(), MOST - len(f"{begin}{blank}".splitlines()))
    first = _packed(begin.splitlines(), MOST - bool(blank) - len(lines), outermost=1)
    packed = "\n".join(first) + blank + "\n".join(lines) + "\n"
    return packed if ast.dump(ast.parse(packed)) == ast.dump(ast.parse(script)) else joined  # a line may be part of a string


def _packed(lines: list[str], most: int, outermost: int = 0) -> list[str]:
    """The lines; as long as they are more, simple statements share some that are indented by as much as ``outermost``."""
    place = len(lines) - 1
    while place > 0 and len(lines) > most:
        both = f"{lines[place - 1]}; {lines[place].strip()}"
        alike = _indent(lines[place - 1]) == _indent(lines[place]) >= outermost and len(both) <= WIDTH
        if alike and _is_simple(lines[place - 1]) and _is_simple(lines[place]):
            lines[place - 1 : place + 1] = [both]
        place -= 1
    return lines


def _is_simple(line: str) -> bool:
    """Whether a line is simple statements alone, without a comment."""
    try:
        found = ast.parse(line.strip()).body
    except SyntaxError:
        return False
    return bool(found) and "#" not in line and all(isinstance(one, SIMPLE) for one in found)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _heads(tree: ast.Module) -> Iterator[tuple[int, ast.stmt]]:
    """The line of the head, and the statement, of each block of one simple statement that no other block follows."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.ClassDef() | ast.With() | ast.For(orelse=[]) | ast.If(orelse=[]):
                found = [(node.lineno, node.body)]
            case ast.Try(orelse=[], finalbody=[]):
                found = [(node.lineno, node.body), *((one.lineno, one.body) for one in node.handlers)]
            case _:
                continue
        yield from ((line, body[0]) for line, body in found if len(body) == 1 and isinstance(body[0], SIMPLE))
