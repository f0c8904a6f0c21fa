"""Expressions lose a part, functions a parameter that they make no use of, and lines that bind go, each as one step."""

from __future__ import annotations

import ast
import textwrap

import pytest

from conformance.reproducers.line_joining import joined
from conformance.reproducers.script_parts import WIDTH
from conformance.reproducers.simplification import simpler


def made(text: str) -> list[str]:
    program = textwrap.dedent(text).strip("\n") + "\n"
    return [one.rstrip() for one in simpler(ast.parse(program).body, program.splitlines(keepends=True))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = a * b", ["y = a", "y = b"]),
        ("y = torch.sin(x)", ["y = x"]),
        ("y = x.sin()", ["y = x"]),
        ("y = other.sin(x)", []),
        ("y = checkpoint(f, x)", ["y = f(x)", "y = x", "y = checkpoint(x, x)", "y = checkpoint(f, f)"]),
        ("y = checkpoint(lambda h: h, 3)", ["y = (lambda h: h)(3)", "y = 3"]),
        ("(lambda: use(x))()", ["use(x)"]),
        ("{'a': x}['a']()", ["x()"]),
        ("f = lambda h, k: h", []),  # nothing calls it
        ("if a:\n    both = f(x)\n    a = both[0]\n    b = both[1]\n    use(both)", []),
        ("if a:\n    both = f(x)\n    a = both[1]\n    b = both[0]", []),
        ("if a:\n    d = {}\n    d['b'] = c", ["if a:\n    d = {'b': c}"]),
        ("if a:\n    d = {}\n    e['b'] = c", []),
        ("if a:\n    both = f(x)\n    c = both[0]\n    d = both[1]", ["if a:\n    c, d = f(x)"]),
    ],
)
def test_one_thing_is_simpler(text: str, expected: list[str]) -> None:
    assert made(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(h, k):\n    return h\nf(1, 2)", "def f(h):\n    return h\nf(1)"),
        ("def f(h, k):\n    return k\ncheckpoint(f, 1, 2)", "def f(k):\n    return k\ncheckpoint(f, 2)"),
        ("checkpoint(lambda h, k: k, 1, 2)", "checkpoint((lambda k: k), 2)"),
        ("def f(h):\n    h = a(h)\n    return h", "def f(h):\n    return a(h)"),
        ("def f(h):\n    h = a + h\n    return h @ b", "def f(h):\n    return (a + h) @ b"),
        (
            "import os\ntry:\n    use(x)\nexcept ValueError as error:\n    note(error)\nend()",
            "import contextlib, os\nwith contextlib.suppress(ValueError):\n    use(x)\nend()",
        ),
    ],
)
def test_among_others_there_is(text: str, expected: str) -> None:
    assert expected in made(text)


@pytest.mark.parametrize(
    "text",
    [
        "def f(h, k):\n    return h\nf(1, 2)\nf(3, 4)",  # two calls would have to change at once
        "def f(h, k):\n    return h + k\nf(1, 2)",
        "def f(h, k=2):\n    return h\nf(1)",
        "def f(h, *k):\n    return h\nf(1, 2)",
    ],
)
def test_parameters_stay(text: str) -> None:
    head = text.splitlines()[0]
    assert all(one.startswith(head) for one in made(text))


def test_what_would_be_too_long_is_left() -> None:
    name = "a" * (WIDTH - 8)
    assert made(f"def f(h):\n    h = {name}\n    return h + 1") == [
        f"def f(h):\n    h = {name}\n    return h",
        f"def f(h):\n    h = {name}\n    return 1",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(h):\n    return h\n", "def f(h): return h\n"),
        ("for x in y:\n    for z in x:\n        use(z)\n", "for x in y:\n    for z in x: use(z)\n"),
        ("if x:\n    use(x)  # a word\nuse(y)\n", "if x: use(x)  # a word\nuse(y)\n"),
        (
            "try:\n    use(x)\nexcept A as b:\n    use(b)\nexcept B:\n    c()\n    d()\n",
            "try: use(x)\nexcept A as b: use(b)\nexcept B:\n    c()\n    d()\n",
        ),
        ("import a\n\nuse(a)\n\n\nuse(b)\n", "import a\n\nuse(a)\nuse(b)\n"),
        ('import a\n\nuse("""\n\n""")\n', 'import a\n\nuse("""\n\n""")\n'),
    ],
)
def test_a_block_of_one_statement_stands_behind_its_head(text: str, expected: str) -> None:
    assert joined(text) == expected
    assert ast.dump(ast.parse(joined(text))) == ast.dump(ast.parse(text))
    assert joined(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "def f(h):\n    use(h)\n    return h\n",
        "if x:  # a word:\n    use(x)\n",
        "if x:\n    use(x)\nelse:\n    use(y)\n",
        "if x:\n    # a word\n    use(x)\n",
        "def f(h,\n      k):\n    return h\n",
        "def f(h):\n    return [\n        h]\n",
        "try:\n    use(x)\nfinally:\n    use(y)\n",
        f"if x:\n    {'a' * (WIDTH - 5)}\n",
        "with a:\n    with b:\n        use(x)\n        use(y)\n",
    ],
)
def test_other_blocks_stay(text: str) -> None:
    assert joined(text) == text
