"""A program that runs in memory, without its text, and what its text must show beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from conformance.judging import judge
from conformance.judging.judge import Observation, execute
from conformance.judging.references import REFERENCES
from conformance.judging.verdicts import difference
from conformance.programs.program import Runnable
from impls import Kind


def in_memory(
    program: Runnable,
    run: Callable[..., None],
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
    device: str = "cpu",
    subject: Any = None,
) -> Observation:
    """What ``run`` shows with ``subject``, which is the reference of its kind if none is given."""
    with monkeypatch.context() as patched:
        patched.setattr(judge, "load", lambda _: run)
        return execute(program, subject or REFERENCES[kind], device, kind=kind)


def _told(error: BaseException | None) -> str:
    """An error's type and first line, without addresses: a compiler tells in others where the code is."""
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def assert_same(printed: Observation, drawn: Observation, text: str) -> None:
    theirs, ours = (re.sub(r"\w+(?=\.<locals>)", "run", _told(one.error)) for one in (printed, drawn))  # as it is printed
    assert theirs == ours, text
    assert list(printed.notes) == list(drawn.notes), text
    for label, value in drawn.notes.items():
        assert difference(value, printed.notes[label], label) is None, text
