"""What a result is written down as: a row says what was declared, what was found, and why a limit is known."""

from __future__ import annotations

from impls import Implementation, Known
from tests.support.numbered_programs import by_number, diverging, held, made


def test_a_row_says_what_was_declared_and_what_was_found() -> None:
    row = held(made(), by_number(n2=diverging)).row()
    shown = [row[key] for key in ("law", "impl", "device", "expected", "verdict", "cases", "as_declared")]
    assert shown == ["made", "fake", "cpu", "agrees", "diverges", 4, False]
    assert row["counts"] == {"agrees": 3, "diverges": 1}
    assert "number = 2" in row["program"]
    assert row["known"] is None


def test_a_row_says_why_and_by_which_source_a_limit_is_known() -> None:
    declares = Implementation("open", diverging, known={"made": Known("diverges", "doubles", "here")})
    assert held(made(), diverging, declares).row()["known"] == {"reason": "doubles", "source": "here"}
    assert held(made(), diverging, declares, declared=False).row()["known"] is None
