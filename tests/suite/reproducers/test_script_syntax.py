"""What is decided about a script is what its syntax says, not a word in a comment, a string or another name."""

from __future__ import annotations

import pytest

from conformance.reproducers.script_syntax import (
    Subject,
    dotted_names,
    ends_what_hangs,
    has_status,
    has_threads,
    imports,
    notes_costs,
    subject,
    with_modules,
)

RUN = "def run(checkpoint, note, device):\n    sys.exit(0)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""a.b:c, law one. It holds, law two. holds."""', Subject("a.b:c", "one")),
        ('"""a, law one two. It holds."""', None),
        ('"""a, law one"""', None),
        ('# """a, law one. It holds."""', None),
        ("no Python", None),
    ],
)
def test_a_docstring_says_what_a_script_is_about(text: str, expected: Subject | None) -> None:
    assert subject(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{RUN}sys.exit(1)", True),
        (f"{RUN}def note(label):\n    sys.exit(1)", True),
        (RUN, False),
        (f"{RUN}# sys.exit(1)\nprint('sys.exit(1)')", False),
        ("sys.exit(1)", True),
        (f"{RUN}print(1); os._exit(1)", True),
        (f"{RUN}try: run()\nexcept ValueError: os._exit(2)", False),
        ("no Python", True),
    ],
)
def test_a_status_is_given_after_the_program(text: str, expected: bool) -> None:
    assert has_status(text) is expected


def test_an_end_of_a_hang_is_after_the_program() -> None:
    call = "faulthandler.dump_traceback_later(30, exit=True)\n"
    assert ends_what_hangs(RUN + call)
    assert not ends_what_hangs(f"{RUN}    {call}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import threading", True),
        ("from concurrent import futures", True),
        ("import concurrent.futures as f", True),
        ("x = 'threading'  # threading", False),
        ("import threadings", False),
    ],
)
def test_threads_are_imported(text: str, expected: bool) -> None:
    assert has_threads(text) is expected


def test_a_module_is_imported_with_those_around_it() -> None:
    assert imports("from impls.nested import api", ["impls"])
    assert imports("from torch.testing import _internal", ["torch.testing._internal"])
    assert not imports("import impls_of_mine", ["impls"])


def test_names_have_what_stands_before_their_dots() -> None:
    assert dotted_names("a.b(c)[0].d") == {"a", "a.b", "c"}


def test_a_note_of_costs_is_known_by_its_role() -> None:
    assert notes_costs("note('cost peak', 1)")
    assert not notes_costs("note('costs', 1)\nprint('cost peak')")


def test_what_stands_behind_the_first_import_stays() -> None:
    text = "'''One.'''\nimport os  # a word\nimport os\n"
    assert with_modules(text, {"sys", "os"}, "  # more") == "'''One.'''\nimport os, sys  # more  # a word\nimport os\n"
