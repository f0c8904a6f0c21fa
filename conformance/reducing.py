"""Taking away from a script whatever its fault does not need, so that what is left can be read.

What decides is the script's own status and what it prints: a smaller one counts when it still ends with status 1, prints
nothing but words that the whole one prints, numbers aside, while under a control, an implementation that keeps the law, it
still gives what it gave: status 0, or the error that is right. So a line without which the program would be wrong stays.

Run as ``python -m conformance.reducing``: scripts come in as JSON, each with the lines that bind the implementation,
those of its control, and what an earlier reduction left; scripts go out.
"""

from __future__ import annotations

import ast
import builtins
import copy
import faulthandler
import functools
import gc
import io
import json
import os
import re
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVALUATIONS = 150
SCREEN, WIDTH = 39, 128
SECONDS_PER_RUN, SECONDS_PER_SCRIPT = 20.0, 6.0
NUMBER = re.compile(r"\b(0x[0-9a-f]+|\d[\d.]*(e[+-]?\d+)?|nan|inf|True|False)\b")
WORD = re.compile(r"[^\W\d][\w.]*")


@dataclass(frozen=True)
class Shown:
    """What running a script gave: its status, and of each line that it printed the words, by the word that it begins with.

    What is printed for a note or a count begins with its name. Numbers and truth values are no words.
    """

    status: int
    words: Mapping[str, frozenset[str]]

    def is_like(self, whole: Shown) -> bool:
        """Whether this is the same, or a part of it."""
        if self.status != whole.status or bool(self.words) is not bool(whole.words):
            return False
        return all(name in whole.words and words <= whole.words[name] for name, words in self.words.items())


def _words(text: str) -> dict[str, frozenset[str]]:
    lines = [(line.partition(":")[0], frozenset(WORD.findall(NUMBER.sub("", line)))) for line in text.splitlines()]
    return {name: frozenset[str]().union(*(words for other, words in lines if other == name)) for name, _ in lines}


class _Slow(BaseException):
    """Raised into a script that takes too long."""


def _expire(*_: object) -> None:
    raise _Slow


def show(script: str, seconds: float = SECONDS_PER_RUN) -> Shown:
    """Run a script in this process, which it may leave in any state. Status 2 is an error, or that it takes too long."""
    printed = io.StringIO()
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except (Exception, _Slow):  # noqa: BLE001 - whatever a script raises is told by its status
        status = 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.excepthook = sys.__excepthook__
        gc.unfreeze()
    return Shown(status, _words(printed.getvalue()))


def reduced(script: str, binding: str, control: str, evaluate: Callable[[str, float], Shown] = show) -> Iterator[str]:
    """Ever smaller scripts with the same fault; none where there is no fault, or where the control shows it too.

    ``binding`` are the lines of the script that bind the implementation, ``control`` those that bind the control in their
    place; where they are empty, nothing is asked of a control. A smaller script that waits for what is no longer there is none.
    """

    def controlled(smaller: str) -> Shown:
        return evaluate(smaller.replace(binding, control, 1), seconds) if control else Shown(0, {})

    seconds, started = SECONDS_PER_RUN, time.monotonic()
    whole = evaluate(script, seconds)
    seconds = 1 + 2 * (time.monotonic() - started)
    right = controlled(script)
    if whole.status != 1 or right.status == 2 or right == whole:
        return
    tried = {script}
    best = before = script
    candidates, position = list(smaller_ones(best, binding)), 0
    while len(tried) < EVALUATIONS:
        if position >= len(candidates):
            if best == before:
                return
            before, position = best, 0  # once more: what was needed may not be any longer
            continue
        candidate = candidates[position]
        position += 1
        if candidate in tried or not _is_bound(candidate):
            continue
        tried.add(candidate)
        shown = evaluate(candidate, seconds)
        if shown.is_like(whole) and controlled(candidate).is_like(right):
            best = candidate
            candidates, position = list(smaller_ones(best, binding)), position - 1
            yield best


def _is_bound(script: str) -> bool:
    """Whether it can be read, and every name in it is bound somewhere: what is not need not be tried."""
    try:
        nodes = list(ast.walk(ast.parse(script)))
    except SyntaxError:
        return False
    bound = {"__name__", *dir(builtins)}
    for node in nodes:
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.alias(name, other):
                bound.add((other or name).partition(".")[0])
            case ast.ExceptHandler(_, str() as name):
                bound.add(name)
    return all(node.id in bound for node in nodes if isinstance(node, ast.Name))


def smaller_ones(script: str, binding: str) -> Iterator[str]:
    """What one step makes of the program in a script, later lines before earlier ones, statements before their parts.

    Where it is longer than a screen, what is used once is put where it is used, and blank lines go.
    """
    lines = script.splitlines(keepends=True)
    after = script[: script.index(binding)].count("\n") + binding.count("\n") + 1
    body = ast.parse(script).body
    names = [getattr(one, "name", "") for one in body]
    program = [one for one in body[: names.index("run") + 1] if one.lineno > after]
    for first, last, text in _steps(program, lines, is_whole=True):
        yield "".join([*lines[: first - 1], text, *lines[last:]])
    if len(lines) > SCREEN:
        yield from _inlined(program[-1], lines)
        yield "".join([*lines[: program[-1].end_lineno], *filter(str.strip, lines[program[-1].end_lineno :])])


def _inlined(run: ast.stmt, lines: list[str]) -> Iterator[str]:
    """The script, with a variable or a function without arguments put where it is used, where that is one place."""
    names = [node for node in ast.walk(run) if isinstance(node, ast.Name)]
    for statement in [node for node in ast.walk(run) if isinstance(node, ast.Assign | ast.FunctionDef)]:
        match statement:
            case ast.Assign([ast.Name(name)], ast.expr() as value) if "requires_grad" not in lines[statement.lineno - 1]:
                pass
            case ast.FunctionDef(name, arguments, [*_, ast.Return(ast.expr() as value)], []) if not ast.unparse(arguments):
                pass
            case _:
                continue
        uses = [node for node in names if node.id == name and isinstance(node.ctx, ast.Load)]
        bound = [node for node in names if node.id == name and isinstance(node.ctx, ast.Store)]
        if len(uses) == 1 and len(bound) == isinstance(statement, ast.Assign) and uses[0].lineno > (statement.end_lineno or 0):
            new = (_put if isinstance(statement, ast.Assign) else _put_body)(statement, value, uses[0], lines)
            first, last = statement.lineno - 1, statement.end_lineno
            yield "".join([*lines[:first], *lines[last : uses[0].lineno - 1], new, *lines[uses[0].lineno :]])


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return (
        f"({text})" if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda | ast.UnaryOp) else text
    )


def _put(_: ast.stmt, value: ast.expr, use: ast.Name, lines: list[str]) -> str:
    line = lines[use.lineno - 1]
    new = line[: use.col_offset] + _text(value) + line[use.end_col_offset :]
    return new if len(new) <= WIDTH else line


def _put_body(function: ast.stmt, value: ast.expr, use: ast.Name, lines: list[str]) -> str:
    """The body of a function in the place of a line that binds what it returns."""
    assert isinstance(function, ast.FunctionDef)
    line = lines[use.lineno - 1]
    inside = lines[function.body[0].lineno - 1 : function.body[-1].lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    bound = line[: use.col_offset] + _text(value) + line[use.end_col_offset :].removeprefix("()")
    return textwrap.indent(textwrap.dedent("".join(inside)), indent) + bound


def _steps(block: list[ast.stmt], lines: list[str], *, is_whole: bool = False) -> Iterator[tuple[int, int, str]]:
    """The first and the last line of what is to be replaced, and by which text."""
    for statement in reversed(block):
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
        last = statement.end_lineno or first
        if len(block) > 1 and "manual_seed" not in lines[first - 1]:
            yield first, last, ""
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for inside in _blocks(statement):
                text = textwrap.dedent("".join(lines[inside[0].lineno - 1 : inside[-1].end_lineno]))
                yield first, last, textwrap.indent(text, " " * statement.col_offset)
            for simpler in _simpler(statement):
                yield first, last, textwrap.indent(ast.unparse(simpler), " " * statement.col_offset) + "\n"
        for inside in _blocks(statement):
            yield from _steps(inside, lines)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The statements inside of a statement, where it has any."""
    handlers = [one.body for one in getattr(statement, "handlers", [])]
    return [*filter(None, (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))), *handlers]


def _simpler(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Simple statements with one import, noted value or case of an expression less."""
    if _blocks(statement):
        return
    for number, node in enumerate(ast.walk(statement)):
        match node:
            case ast.Import(names) | ast.ImportFrom(_, names) | ast.Tuple(names, ast.Load()) | ast.List(names, ast.Load()):
                for index in range(len(names)) if len(names) > 1 else ():
                    yield _changed(statement, number, functools.partial(_without, index))
            case ast.Dict(names):
                for index in range(len(names)) if len(names) > 1 else ():
                    yield _changed(statement, number, functools.partial(_without_pair, index))
            case ast.IfExp():
                yield _changed(statement, number, lambda one: setattr(one, "test", ast.Constant(True)))
                yield _changed(statement, number, lambda one: setattr(one, "test", ast.Constant(False)))


def _without(index: int, node: Any) -> None:
    del (node.names if isinstance(node, ast.Import | ast.ImportFrom) else node.elts)[index]


def _without_pair(index: int, node: ast.Dict) -> None:
    del node.keys[index], node.values[index]


def _changed(statement: ast.stmt, number: int, change: Callable[[Any], object]) -> ast.stmt:
    """A copy in which the node of that number is changed."""
    copied = copy.deepcopy(statement)
    change(list(ast.walk(copied))[number])
    return ast.fix_missing_locations(_Decided().visit(copied))


class _Decided(ast.NodeTransformer):
    """Puts in the place of an expression that is decided the case that it is decided for."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        match self.generic_visit(node):
            case ast.IfExp(ast.Constant(bool() as decided), body, orelse):
                return body if decided else orelse
        return node


def smallest(script: str, binding: str, control: str, earlier: str = "") -> str:
    """The script, reduced in a process of its own, which may end in any way. Forks, as ``conformance.replay`` does.

    What an ``earlier`` reduction left is taken, if it still shows the same fault. Where what one step leaves behind
    decides on the next ones, each is tried in a process of its own, which takes longer.
    """
    about = _frame(script, binding)
    if binding in earlier and _frame(earlier, binding) == about and _agrees(script, earlier, binding, control):
        return earlier
    for evaluate in (show, _shown):
        found = _in_child(functools.partial(_write_smaller, script, binding, control, evaluate))
        if found and _agrees(script, found, binding, control):
            return found
    return script


def _frame(script: str, binding: str) -> list[str]:
    """The lines of a script that no reduction changes: what it is about, and how it measures."""
    head, _, rest = script.partition(binding)
    end = next(one.end_lineno for one in ast.parse(rest).body if isinstance(one, ast.FunctionDef) and one.name == "run")
    return [line for line in [*head.splitlines(), *rest.splitlines()[end:]] if line]


def _write_smaller(script: str, binding: str, control: str, evaluate: Callable[[str, float], Shown], path: Path) -> None:
    for number, smaller in enumerate(reduced(script, binding, control, evaluate)):
        made = path.with_suffix(f".{number}")
        made.write_text(smaller, encoding="utf-8")
        made.replace(path)


def _agrees(script: str, found: str, binding: str, control: str) -> bool:
    """Whether in new processes too the smaller one shows what the whole one shows, twice, and so does the control."""
    whole, *runs = (_shown(one) for one in (script, found, found))
    if not all(one.is_like(whole) for one in runs):
        return False
    pair = [_shown(one.replace(binding, control, 1)) for one in (script, found)] if control else [whole, whole]
    return pair[1].is_like(pair[0])


def _shown(script: str, seconds: float = SECONDS_PER_RUN) -> Shown:
    """What ``show`` says in a process of its own."""

    def write(path: Path) -> None:
        shown = show(script, seconds)
        words = {name: sorted(found) for name, found in shown.words.items()}
        path.write_text(json.dumps([shown.status, words]), encoding="utf-8")

    status, words = json.loads(_in_child(write) or "[2, {}]")
    return Shown(status, {name: frozenset(found) for name, found in words.items()})


def _in_child(write: Callable[[Path], None]) -> str:
    """What a new process has written, as far as it came. Whatever it leaves running is ended with it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "written"
        alone = os.getpgrp() != os.getpid()  # a child's own children are of its group
        child = os.fork()
        if child == 0:
            try:
                if alone:
                    os.setpgid(0, 0)
                with Path(os.devnull).open("w") as nowhere:
                    os.dup2(nowhere.fileno(), 1)  # who reads what this process writes does not wait for what is left running
                    faulthandler.dump_traceback_later(SECONDS_PER_SCRIPT, exit=True, file=nowhere)
                    write(path)
            except BaseException:  # noqa: BLE001 - what a program raised at its end must not go on here
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        if alone:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    """Scripts from standard input to standard output."""
    import torch._dynamo  # noqa: F401  # once, for all processes; torch's checkpoint imports it at its first call

    sys.stdout.write(json.dumps([smallest(*one) for one in json.load(sys.stdin)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
