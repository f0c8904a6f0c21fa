"""The live display of a conformance run: the current law, the progress, and how many verdicts were unexpected so far."""

from __future__ import annotations

from typing import Any, TextIO


class Silent:
    """No display, for use without a terminal or without rich; pytest's own marks are enough then."""

    def advance(self, law: str, implementation: str, expected: bool) -> None:
        """One law was judged for one implementation."""

    def stop(self) -> None:
        """The run is over."""


class Live(Silent):
    """A line that is drawn anew after each verdict."""

    def __init__(self, total: int, file: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[unexpected]} unexpected"),
            console=Console(file=file, force_terminal=True),
            transient=True,
            auto_refresh=False,  # a thread that draws would create objects while laws count them
        )
        self.task = self.progress.add_task("laws", total=total, unexpected=0)
        self.unexpected = 0
        self.progress.start()

    def advance(self, law: str, implementation: str, expected: bool) -> None:
        self.unexpected += not expected
        self.progress.update(self.task, advance=1, description=f"{implementation}: {law}", unexpected=self.unexpected)
        self.progress.refresh()

    def stop(self) -> None:
        self.progress.stop()


def display(total: int, file: Any) -> Silent:
    """The display that the terminal allows."""
    try:
        import rich  # noqa: F401  # optional: the suite runs where only torch, pytest and hypothesis are installed
    except ModuleNotFoundError:
        return Silent()
    return Live(total, file) if file.isatty() else Silent()
