"""What a note of a program stands for, by the first word of its label, which only this module writes and reads.

A program is text that runs with torch alone, so ``note("gradients 0", ...)`` says in words what a typed call would say.
A label that begins with any other word notes a plain value.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a note stands for, by the first word of its label."""

    LEAVES = "leaves"  # the tensors that exist before the body; not compared
    SAVED = "saved"  # what is due to be saved
    FORWARD = "forward"  # what the program computed
    GRADIENTS = "gradients"  # of all leaves, after a backward
    GRADIENT = "gradient"  # of one tensor
    GRAD = "grad"  # what torch.autograd.grad gave
    FIRST = "first"  # gradients that are differentiated once more
    ATTEMPT = "attempt"  # a backward that may fail is over
    HELD = "held"  # all that the program holds of graphs
    EMPTY = "empty"  # the program holds no graph any longer
    END = "end"  # the run is over
    DUE = "due"  # the node of an operator is due in backward
    STEP = "step"  # one of several steps that are alike is over
    COST = "cost"  # a measurement, which is not plain's
    EXPECTED = "expected"  # what the note "seen" of the same words has to be
    SEEN = "seen"
    VALUE = ""  # compared, and nothing more

    @property
    def has_gradients(self) -> bool:
        """Whether gradients are noted."""
        return self in (Role.GRADIENTS, Role.GRADIENT, Role.GRAD, Role.FIRST)


_ROLES = {role.value: role for role in Role if role is not Role.VALUE}


@dataclass(frozen=True)
class Note:
    """What a note stands for, and the words after its first one (for a plain value, all words)."""

    role: Role
    words: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The label in a program."""
        return " ".join((self.role, *self.words) if self.role else self.words)

    @property
    def about(self) -> str:
        """The words, joined by spaces."""
        return " ".join(self.words)

    @property
    def number(self) -> int:
        """The last word, of a note that is numbered."""
        return int(self.words[-1])


WHOLE_FORWARD = Note(Role.FORWARD)  # with words, the forward of a part or of a turn is over
EACH_STEP = Note(Role.STEP)  # of steps that are all alike
CALLS = Note(Role.COST, ("calls",))  # how often functions of regions ran, counted by the program itself


@functools.cache
def read(label: str) -> Note:
    """The note of a label."""
    first, *words = label.split(" ")
    role = _ROLES.get(first, Role.VALUE)
    return Note(role, tuple(words) if role else (first, *words))
