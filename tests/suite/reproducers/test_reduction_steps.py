"""What one step of a reduction makes of a program, and how long scripts are laid out."""

from __future__ import annotations

import ast
import textwrap

import pytest

from conformance.programs.program import WIDTH
from conformance.reproducers.reduction_steps import MOST, SCREEN, denser_ones, join_lines, laid_out, smaller_ones


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
    assert join_lines(text) == expected
    assert ast.dump(ast.parse(join_lines(text))) == ast.dump(ast.parse(text))
    assert join_lines(expected) == expected


def test_statements_share_lines_only_where_a_script_would_be_too_long() -> None:
    head, last = "checkpoint = 1\n\n", "def f(h):\n    use(h)\n    return h  # a word\nuse(f)\ndel f\n"
    short, long = (head + "".join(f"if {number}: use()\n" for number in range(count)) + last for count in (36, 39))
    assert laid_out(short) == join_lines(short)
    assert laid_out(long) == join_lines(long).replace("use(f)\ndel f\n", "use(f); del f\n")
    assert ast.dump(ast.parse(laid_out(long))) == ast.dump(ast.parse(long))


@pytest.mark.parametrize(
    ("lines", "bound", "body"),
    [
        (MOST, "f()\n    return f", "use(x)\n    use(y)"),
        (MOST + 1, "f()\n    return f", "use(x); use(y)"),
        (MOST + 2, "f(); return f", "use(x); use(y)"),
        (MOST + 3, "f(); return f", "use(x); use(y)"),
    ],
)
def test_what_binds_the_implementation_shares_lines_last_and_inside_of_functions_alone(
    lines: int, bound: str, body: str
) -> None:
    head = '"""About\nit"""\nx = 1\ny = 2\ndef checkpoint(f):\n    f()\n    return f\n\n'
    block = "if a:\n    use(x)\n    use(y)\n"
    text = head + block + "for x in y: use()\n" * (lines - len(f"{head}{block}".splitlines()))
    assert laid_out(text) == text.replace("f()\n    return f", bound).replace("use(x)\n    use(y)", body)


def test_lines_of_a_string_and_of_blocks_do_not_share_one() -> None:
    text = "checkpoint = 1\n\n" + "for x in y:\n    use(x)\n    use(x)\n" * SCREEN + 'use("""\na\nb\n""")\n'
    assert ast.dump(ast.parse(laid_out(text))) == ast.dump(ast.parse(text))


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
    assert join_lines(text) == text


BINDING = "checkpoint = None"
LONG = "".join(f"use({number})\n" for number in range(SCREEN))


def steps(text: str, after: str = "") -> list[str]:
    """The bodies of what the steps make of a program with this body, without what comes ``after`` in it."""
    body = textwrap.indent(text + after, "    ")
    made = smaller_ones(f"import os\n{BINDING}\n\ndef run(a, b):\n{body}\nrun(1, 2)\n", BINDING)
    bodies = [textwrap.dedent(one.partition("def run(a, b):\n")[2].partition("\n\nrun(")[0]) for one in made]
    return [one.removesuffix(after.rstrip()).rstrip() for one in bodies if one.endswith(after.rstrip())]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = 1\nuse(x)\n", ["x = 1", "use(x)"]),
        ("torch.manual_seed(0)\nuse(x)\n", ["torch.manual_seed(0)"]),  # what seeds stays
        ("with a, b:\n    use(x)\n", ["use(x)", "with b:\n    use(x)", "with a:\n    use(x)"]),
        ("use((x, y))\n", ["use((y,))", "use((x,))"]),
        ("use({1: x, 2: y})\n", ["use({2: y})", "use({1: x})"]),
        ("use(x if a else y)\n", ["use(x)", "use(y)"]),
        ("if a:\n    use(x)\nelse:\n    use(y)\n", ["use(x)", "use(y)"]),
        ("def f(h):\n    return h\n", []),
    ],
)
def test_a_step_takes_one_thing_away(text: str, made: list[str]) -> None:
    assert steps(text) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = a + b\nuse(x * 2)\n", "use((a + b) * 2)"),
        ("x = f(g(y), 2)\n", "x = g(y)"),
        ("x = f(g(y), 2)\n", "x = f(y, 2)"),
        ("def f():\n    a()\n    return b\nx, y = f()\n", "a()\nx, y = b"),
        ("def f(x):\n    with x:\n        c()\nif a:\n    f(b)\n", "if a:\n    with b:\n        c()"),
        ("def f(x):\n    a()\n    return x\ndef g():\n    return f(b)\n", "def g():\n    a()\n    return b"),
    ],
)
def test_in_a_long_script_values_and_arguments_take_the_place_of_names_and_calls(text: str, made: str) -> None:
    assert made in steps(text, LONG)
    assert made not in steps(text)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = a()\nuse(x, x)\n", "use(a(), x)"),
        ("p = make().requires_grad_()\nuse(p)\n", "use(make().requires_grad_())"),  # a leaf reads best on a line of its own
        ("x = 'a' * 3\nuse('" + "b" * 118 + "', x)\n", "use('" + "b" * 118 + "', 'a' * 3)"),  # the line would be too long
        ("use(x)\nx = a()\n", "use(a())"),
        ("def f(x, y=1):\n    use(x, y)\nf(1)\n", "use(1, y)"),
        ("def f(x):\n    use(x)\nf(f(1))\n", "use(f(1))"),
        ("@a\ndef f(x):\n    use(x)\nf(1)\n", "use(1)"),
    ],
)
def test_what_is_used_twice_or_does_not_fit_is_left(text: str, made: str) -> None:
    assert made not in steps(text, LONG)


def test_denser_ones_are_the_further_steps_alone() -> None:
    text = f"import os\n{BINDING}\n\ndef run(a, b):\n    x = a + b\n    use(x * 2)\n\nrun(1, 2)\n"
    (made,) = denser_ones(text, BINDING)
    assert made == text.replace("    x = a + b\n    use(x * 2)", "    use((a + b) * 2)")
    assert made not in smaller_ones(text, BINDING)
