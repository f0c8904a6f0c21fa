"""Showing a long run: what is being done, how far it is, and a line for each thing that is done.

In a terminal one line at the bottom, a bar with what is being done, is painted anew, and lines of what is done are printed
once, above it. Elsewhere each line has its number instead, and is flushed.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text


class Watch:
    """A context in which steps, ``total`` of them, are shown on ``console``.

    Nothing runs beside what is shown, so that times that are measured meanwhile are not disturbed: the bar is painted when a
    step begins and when it is done.
    """

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.done_so_far = console, total, 0
        self.live = console.is_terminal and not console.is_dumb_terminal
        one_line = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        columns = TextColumn("{task.description}", markup=False, table_column=one_line), BarColumn(20), MofNCompleteColumn()
        self.progress = Progress(
            *columns, console=console, auto_refresh=False, transient=True, expand=True, disable=not self.live
        )
        self.task = self.progress.add_task("", total=total)

    def __enter__(self) -> Watch:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def doing(self, what: str) -> None:
        """Show what is being done from now on."""
        self.progress.update(self.task, description=what, refresh=True)

    def done(self, line: Text) -> None:
        """Print the line of a step that is over."""
        self.done_so_far += 1
        self.progress.update(self.task, advance=1)
        if self.live:
            self.console.print(line)
        else:
            self.console.print(Text(f"[{self.done_so_far}/{self.total}] ") + line, soft_wrap=True)
