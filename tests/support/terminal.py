"""A terminal of a given size that keeps what scrolls out of it, for the control sequences that rich writes."""

from __future__ import annotations

import re

ESCAPE = re.compile(r"\x1b\[\??(\d*)(?:;\d+)*([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Terminal:
    """Interprets what is written; ``lines`` are those that scrolled out and those on the screen, without spaces at the end."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.text = [""]
        self.row = self.column = 0

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text]

    def write(self, written: str) -> None:
        """Interpret. Raises ValueError for a control sequence that it does not know."""
        for match in ESCAPE.finditer(written):
            count, command, home, down, words = match.groups()
            if command:
                self._command(command, int(count or 1))
            elif home:
                self.column = 0
            elif down:
                self._down()
            for letter in words or "":
                self._put(letter)

    def _command(self, command: str, count: int) -> None:
        if command == "A":  # cannot leave the screen: what has scrolled out stays as it is
            self.row = max(self.row - count, len(self.text) - self.rows, 0)
        elif command == "K":
            self.text[self.row] = ""
        elif command not in "mhl":  # colours; the cursor is hidden and shown
            raise ValueError(f"the terminal does not know {command!r}")

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0  # as a pseudo-terminal that turns new lines into both
        if self.row == len(self.text):
            self.text.append("")

    def _put(self, letter: str) -> None:
        if self.column == self.columns:
            self._down()
        line = self.text[self.row].ljust(self.column)
        self.text[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1
