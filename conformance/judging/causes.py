"""The cause in a row: what was observed, without numbers and names of this case, so that reports can group laws by it.

A cause also has an effect, if what was observed says by itself what it does to a user.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Literal

from conformance.programs.notes import Note, Role

Effect = Literal["wrong gradient", "leaked or late memory", ""]


@dataclass(frozen=True)
class Cause:
    """What was observed, in words, and its effect; "" where that depends on the law."""

    words: str
    effect: Effect = ""


NONE = Cause("")
_RECOMPUTED = Cause("more or fewer recomputed tensors are alive than expected", "leaked or late memory")
_HOOKS = Cause("hooks around the program see more or fewer tensors than expected")
# By what decided a verdict (Measured.what).
MEASURED = {
    "alive": Cause("more or fewer storages are alive than expected", "leaked or late memory"),
    "inside": _RECOMPUTED,
    "recomputed": _RECOMPUTED,
    "objects": Cause("the number of Python objects changes from step to step", "leaked or late memory"),
    "kernels": Cause("operators run more or less often than expected"),
    "calls": Cause("functions run more or less often than expected"),
    "packed": _HOOKS,
    "saved": _HOOKS,
}
_PARTICULAR = re.compile(r"\[[^\]]*\]|(?<!\w)'[^']*'|`[^`]*`|\S*<locals>\S*|-?\b\d[\w.+-]*")
WORDS, WIDTH = 9, 100


@dataclass(frozen=True)
class Difference:
    """Where two values of a note differ, and in what: "missing", "extra", "values", or the name of a tensor's property."""

    path: str
    what: str
    expected: object
    seen: object

    @property
    def of_values(self) -> bool:
        """Whether values differ, and not a tensor's properties."""
        return self.what in ("missing", "extra", "values")

    def told(self, due: str = "plain") -> str:
        """The difference in words; ``due`` names the side that is expected."""
        return f"{self.path}: {'' if self.of_values else f'{self.what} '}{due} {self.expected}, here {self.seen}"


def noted(note: Note, found: Difference) -> Cause:
    """The cause for a note that differs from plain's."""
    if note.role.has_gradients:
        told = {"missing": "a gradient is missing", "extra": "there is a gradient where plain has none"}
        return Cause(told.get(found.what, "a gradient differs from plain's"), "wrong gradient")
    if note.role is Role.FORWARD:
        return Cause("a value of forward differs from plain's")
    called = f"what is noted as '{_called(note.label)}'"
    return Cause(f"{called} differs from plain's" if found.of_values else f"of {called}, {found.what} differs from plain's")


def left_behind(error: BaseException) -> Cause:
    """The cause for a wrong gradient that an error left."""
    return Cause(f"raised {type(error).__name__}, but left a gradient that is wrong", "wrong gradient")


def unexpected(note: Note) -> Cause:
    """The cause for a note that is not what the program itself expects."""
    return Cause(f"what is noted as '{_called(note.about)}' is not what the law expects")


def _called(label: str) -> str:
    """A label without the number at its end, and with "…" for other numbers."""
    *words, last = label.split(" ")
    return re.sub(r"\d+", "…", " ".join([*words, *([] if words and last.isdigit() else [last])]))


def raised(error: BaseException) -> Cause:
    """The cause for an error: its type and the beginning of its message, without names and numbers of this case."""
    words = _PARTICULAR.sub("…", (str(error).splitlines() or ["(no message)"])[0]).split()
    return Cause(f"raised {type(error).__name__}: {' '.join(words[:WORDS])}{' …' * (len(words) > WORDS)}")


def shortened(detail: str) -> Cause:
    """The cause for any other message: its beginning, without numbers and what is in brackets or quotes."""
    first = detail.partition("\n")[0].partition(", in ")[0]
    return Cause(textwrap.shorten(_PARTICULAR.sub("…", first), WIDTH, placeholder=" …"))
