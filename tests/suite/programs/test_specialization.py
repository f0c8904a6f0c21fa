"""Folding: what the arguments of a program decide is decided, everything else stays, and what is unused goes."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest

from conformance.programs.specialization import folded


def fold(text: str, **arguments: Any) -> str:
    function = ast.parse("def program(checkpoint, note, device):\n" + textwrap.indent(text, "    ")).body[0]
    assert isinstance(function, ast.FunctionDef)
    before = ast.dump(function)
    body = folded(function, arguments)
    assert ast.dump(function) == before, "the program itself was changed"
    return "\n".join(ast.unparse(ast.fix_missing_locations(statement)) for statement in body)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("y = x if nested else z", "y = x"),
        ("y = x if not nested else z", "y = z"),
        ("if kind == 'leaf':\n    a()\nelif kind == 'view':\n    b()\nelse:\n    c()", "b()"),
        ("if kind in ('leaf', 'node') or nested:\n    a()", "a()"),
        ("if nested and x:\n    a()", "if x:\n    a()"),
        ("if x or nested:\n    a()", "if x or True:\n    a()"),  # x may do something
        ("y = x and not nested and z()", "y = x and False"),
        ("y = pair[1] + pair[0]", "y = 3"),
        ("y[pair[0]] = -count", "y[1] = -3"),
        ("for i in range(pair[0]):\n    a(i, f'{i} {x}')", "for i in range(1):\n    a(i, f'{i} {x}')"),
        ("for i in ():\n    a(i)\nb()", "b()"),
        ("for i in range(count - 3):\n    a(i)\nb()", "b()"),
        ("for i in range(3):\n    if not nested:\n        a()", "for i in range(3):\n    pass"),
        ("y = {'view': a, 'copy': b}[kind]()", "y = {'view': a, 'copy': b}['view']()"),
        ("for i in range(count):\n    if i == 0:\n        a()", "for i in range(3):\n    if i == 0:\n        a()"),
        ("if x:\n    if not nested:\n        a()", "if x:\n    pass"),
        ("'''What it is about.'''\na()", "a()"),
        ("y = f'{kind} {x}'", "y = f'view {x}'"),
        ("y = f'{kind}'", "y = 'view'"),
    ],
)
def test_what_the_arguments_decide_is_decided(text: str, result: str) -> None:
    assert fold(text, nested=True, kind="view", pair=(1, 2), count=3) == result


def test_an_argument_that_is_assigned_to_stays_a_variable() -> None:
    assert fold("count += 1\nuse(count)", count=3) == "count = 3\ncount += 1\nuse(count)"


def test_an_argument_that_a_function_inside_calls_its_own_stays_a_variable() -> None:
    assert fold("def f(x):\n    return x\ny = f(2) + x", x=3) == "x = 3\ndef f(x):\n    return x\ny = f(2) + x"


def test_functions_and_imports_that_are_left_unused_go() -> None:
    text = "import math\nfrom contextlib import nullcontext\n"
    text += "def g(x):\n    return math.sin(x)\ndef f(x):\n    return g(x)\ny = f(1) if nested else 2"
    assert fold(text, nested=False) == "y = 2"
    assert fold(text, nested=True).splitlines()[0] == "import math"
    assert "nullcontext" not in fold(text, nested=True)


def test_a_decorated_function_stays() -> None:
    assert "def f" in fold("@register\ndef f(x):\n    return x\ny = 2")
