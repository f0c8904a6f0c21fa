"""The cause in a row: what was observed, without numbers and names of this case, so that reports can group laws by it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from conformance.programs.notes import Note, Role

GRADIENT = "a gradient differs from plain's"
# By what decided a verdict, as Measured has it.
MEASURED = {
    "alive": "other storages are alive than is due",
    "inside": "other recomputed tensors are alive than is due",
    "recomputed": "other recomputed tensors are alive than is due",
    "objects": "the number of objects of Python changes from step to step",
    "kernels": "operators run more or less often than is due",
    "calls": "functions run more or less often than is due",
    "packed": "hooks around the program see more or fewer tensors than they are to",
    "saved": "hooks around the program see more or fewer tensors than they are to",
}
_PARTICULAR = re.compile(r"\[[^\]]*\]|(?<!\w)'[^']*'|`[^`]*`|\S*<locals>\S*|-?\b\d[\w.+-]*")
WORDS, WIDTH = 9, 100


@dataclass(frozen=True)
class Difference:
    """Where two values of a note differ, and in what: "missing", "extra", "values", or the name of what a tensor is."""

    path: str
    what: str
    expected: object
    seen: object

    @property
    def of_values(self) -> bool:
        """Whether values differ, not what a tensor is."""
        return self.what in ("missing", "extra", "values")

    def told(self, due: str = "plain") -> str:
        """The difference in words, between what is ``due`` and what is here."""
        return f"{self.path}: {'' if self.of_values else f'{self.what} '}{due} {self.expected}, here {self.seen}"


def noted(note: Note, found: Difference) -> str:
    """Of a note that differs from plain's."""
    if note.role.has_gradients:
        told = {"missing": "a gradient is missing", "extra": "there is a gradient where plain has none"}
        return told.get(found.what, GRADIENT)
    if note.role is Role.FORWARD:
        return "a value of forward differs from plain's"
    called = f"what is noted as '{_called(note.label)}'"
    return f"{called} differs from plain's" if found.of_values else f"of {called}, {found.what} differs from plain's"


def unexpected(note: Note) -> str:
    """Of a note that is not what the program itself expects."""
    return f"what is noted as '{_called(note.about)}' is not what the law expects"


def _called(label: str) -> str:
    """A label without the number that it ends with, and without others."""
    *words, last = label.split(" ")
    return re.sub(r"\d+", "…", " ".join([*words, *([] if words and last.isdigit() else [last])]))


def raised(error: BaseException) -> str:
    """Of an error: its type and what it begins with, without what is of this case alone."""
    words = _PARTICULAR.sub("…", (str(error).splitlines() or ["(no message)"])[0]).split()
    return f"raised {type(error).__name__}: {' '.join(words[:WORDS])}{' …' * (len(words) > WORDS)}"


def shortened(detail: str) -> str:
    """Of anything else: what is told of it, without what stands in brackets or quotes and without numbers."""
    first = detail.partition("\n")[0].partition(", in ")[0]
    return textwrap.shorten(_PARTICULAR.sub("…", first), WIDTH, placeholder=" …")
