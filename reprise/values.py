"""Types of options: how a value is read, and what help shows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from conformance.rows import option_values


def _shown(value: Any) -> str | None:
    """A default as help shows it; None, so that help shows nothing, for a flag and for no default."""
    return None if value in (None, "", ()) or value is False else f"{value:g}" if isinstance(value, float) else str(value)


def option(name: str | None = None, *, read: Callable[[str], Any] | None = None, metavar: str | None = None) -> Parameter:
    """An option of one value. ``read`` turns its text into the value, or raises ValueError."""

    def converted(_: type, tokens: Sequence[Token]) -> Any:
        assert read is not None
        return read(tokens[0].value)

    converter = converted if read else None
    return Parameter(name, converter=converter, n_tokens=1 if read else None, metavar=metavar, negative="", show_default=_shown)


def _results_path(text: str) -> Path:
    from conformance.runs.destination import results_path  # which imports torch

    return results_path(text)


def _merged_path(text: str) -> Path | None:
    from conformance.runs.destination import merged_path

    return None if merged_path(text) == "-" else Path(text)


def _database_path(text: str) -> Path:
    from conformance.soak.command import database_path

    return database_path(text)


def _workers(text: str) -> str:
    if text not in ("auto", "logical") and not text.isdecimal():
        raise ValueError(f"it is {text}; accepted are a whole number from 0 on, 'auto' and 'logical'")
    return text


def _ranks(text: str) -> int:
    if (ranks := option_values.natural(text)) < 1:
        raise ValueError(f"it is {text}; accepted is a whole number, 1 or more")
    return ranks


def _rounds(text: str) -> int:
    if (rounds := option_values.natural(text)) < 2:
        raise ValueError(f"it is {text}; accepted is a whole number, 2 or more")
    return rounds


Flag = Annotated[bool, option()]
Text = Annotated[str | None, option(metavar="NAME")]
Names = Annotated[tuple[str, ...], option(metavar="NAME")]
Device = Annotated[str, option(metavar="TYPE")]
Seed = Annotated[int, option(read=option_values.natural, metavar="N")]
FirstSeed = Annotated[int | None, option(read=option_values.natural, metavar="N")]
Ranks = Annotated[int | None, option(read=_ranks, metavar="N")]
Rounds = Annotated[int, option(read=_rounds, metavar="N")]
Positive = Annotated[float, option(read=option_values.positive, metavar="X")]
Memory = Annotated[float | None, option(read=option_values.gibibytes, metavar="GIB")]
Workers = Annotated[str | None, option("-n", read=_workers, metavar="WORKERS")]
ResultsFile = Annotated[Path, option(read=option_values.readable, metavar="FILE")]
NewResults = Annotated[Path | None, option(read=_results_path, metavar="FILE")]
MergedFile = Annotated[Path | None, option(read=_merged_path), Parameter(allow_leading_hyphen=True)]  # for -
Database = Annotated[Path | None, option(read=_database_path, metavar="FILE")]
File = Annotated[Path | None, option(metavar="FILE")]

Profile = Annotated[Literal["quick", "round", "default", "long", "soak", "exhaustive"], option()]  # of conformance.judging.law
