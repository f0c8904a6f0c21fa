"""Judges implementations by the laws that take ranks, and writes results and scripts: ``python -m reprise judge --ranks N``."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import impls
from conformance.distributed.answer import BACKENDS, Unjudged
from conformance.distributed.explorer import RankedExplorer
from conformance.distributed.law import PROFILES, RankedLaw, all_laws
from conformance.distributed.world import Worlds
from conformance.page import page
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.reports import ranking, report
from conformance.reproducers import script_files
from conformance.reproducers.reduction_steps import MOST
from conformance.reproducers.replay import standalone
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption, did_you_mean
from conformance.rows.results_file import ROOT, Row, is_unexpected
from conformance.runs import selection
from conformance.runs.completeness import distributions
from impls import Implementation

Say = Callable[[str], None]
LIKE = "nested"  # by its claims, implementations without a declaration are judged
DEFAULT_RANKS = 2  # of a run that is published
MANY = 4  # lines of a verdict's detail that are printed, at most
SHOWN = 10  # failures that are printed, at most
PUBLISHED = ROOT / "results" / "distributed-cpu.jsonl"  # of a complete run in which all verdicts are as declared
PUBLISHED_PEERS = PUBLISHED.with_name("distributed-peers-cpu.jsonl")  # of one with --peers, which lacks none


@dataclass(frozen=True)
class Choice:
    """What is judged: implementations by name, or the installed ``peers``. ``words`` select among them and among laws.

    Ranks compute on a type of ``device``, each on one of its own.
    """

    impl: Sequence[str] = ()
    peers: bool = False
    like: str | None = None
    words: str | None = None
    device: str = "cpu"

    def implementations(self) -> list[Implementation]:
        """The implementations. Raises InvalidOption for one that is unknown or of another kind, and for none."""
        try:
            selection.refuse_peers_beside(self.impl, self.peers)
        except ValueError as error:
            raise InvalidOption(str(error)) from error
        if self.impl:
            return list(self.named().values())
        if self.peers:
            there = (name for name, peer in impls.PEERS.items() if peer.runs_on(self.device))
            if not (found := list(filter(None, map(_installed, there)))):
                raise InvalidOption(f"--peers: none can be judged here{self._missing()}")
            return found
        built = filter(None, map(_installed, impls.COMPILED))
        return [*(impls.get(name) for name in impls.names("checkpoint")), *built]

    def named(self) -> dict[str, Implementation]:
        """The implementations of ``impl``, by what was given. Ranks find one by its name, so each must have its own."""
        try:
            found = {name: impls.find(name, "checkpoint") for name in dict.fromkeys(self.impl)}
        except ValueError as error:
            raise InvalidOption(f"--impl: {error}") from error
        try:
            selection.refuse_names(found.items())
        except ValueError as error:
            raise InvalidOption(str(error)) from error
        return found

    def claims(self, implementation: Implementation) -> Implementation:
        """The implementation by whose claims this one is judged."""
        if implementation.declared:
            return implementation
        try:
            return impls.get(self.like or LIKE)
        except ValueError as error:
            raise InvalidOption(f"--like: {error}") from error

    def pairs(self, laws: Mapping[str, RankedLaw]) -> list[tuple[RankedLaw, Implementation]]:
        """The selected pairs of law and implementation. Raises InvalidOption if there are none."""
        wanted = [] if self.words is None else self.words.split(" or ")
        if any(" " in one.strip() for one in wanted):
            raise InvalidOption(f"-k is {self.words!r}; with --ranks, accepted are parts of names with 'or' between them")
        judged = self.implementations()
        found = [(law, one) for law in laws.values() for one in judged if _named(wanted, law.name, one.name)]
        if not found:
            near = self._missing(wanted) or (did_you_mean(wanted[0], laws) if wanted else "")
            raise InvalidOption(f"-k {self.words!r} selects none of {len(laws)} laws that take ranks{near}")
        return found

    def published(self) -> Path | None:
        """Where results of all laws for these implementations are published; None for a part of either."""
        if self == Choice():
            return PUBLISHED
        missing = selection.left_out(self.peers, self.impl, self.device)
        is_whole = self == Choice(peers=True) and not any(impls.PEERS[name].runs_on(self.device) for name in missing)
        return PUBLISHED_PEERS if is_whole else None

    def _missing(self, wanted: Sequence[str] = ()) -> str:
        """What to add to a message: those of the peers, or of what has to be built, that cannot be judged here, and why."""
        missing = selection.left_out(self.peers, self.impl, self.device)
        return "".join(f"; {name}: {why}" for name, why in missing.items() if _named(wanted, name))


def refuse_device(device: str, ranks: int) -> None:
    """Raises InvalidOption for a device that ranks cannot compute on, or of which there is not one for each."""
    if device not in BACKENDS:
        raise InvalidOption(f"--device is {device}; with --ranks, accepted are {', '.join(BACKENDS)}")
    if device != "cpu" and (there := torch.cuda.device_count()) < ranks:
        raise InvalidOption(
            f"--device {device} with --ranks {ranks} needs {ranks} devices, one for each rank; there are {there}"
        )


def that_fit(laws: Mapping[str, RankedLaw], ranks: int, device: str) -> dict[str, RankedLaw]:
    """The laws that so many ranks can judge: one rank judges what needs no other, and each rank has a device of its own.

    On the CPU a law that takes more ranks than two has as many as it takes.
    """
    if ranks == 1:
        most: float = 1
    else:
        most = math.inf if device == "cpu" else torch.cuda.device_count()
    return {name: law for name, law in laws.items() if law.ranks <= most}


def _installed(name: str) -> Implementation | None:
    """A peer, or what has to be built; None if it is not available here or not of this kind."""
    try:
        found = impls.find(name)
    except ValueError:
        return None
    return found if found.kind == "checkpoint" else None


def _named(wanted: Sequence[str], *names: str) -> bool:
    return not wanted or any(one.strip() in name for one in wanted for name in names)


def judge(choice: Choice, *, ranks: int, profile: str, seed: int, results: Path | None, say: Say) -> int:
    """Judge. Returns the exit status: 0 if and only if every verdict is the declared one.

    Raises InvalidOption, once the rows so far are written, if a pair cannot be judged: that is no verdict.
    """
    if profile not in PROFILES:
        raise InvalidOption(f"--profile is {profile}; with --ranks, accepted are {', '.join(PROFILES)}")
    refuse_device(choice.device, ranks)
    laws = all_laws()
    fit = that_fit(laws, ranks, choice.device)
    pairs = choice.pairs(laws)
    if omitted := sorted({law.name for law, _ in pairs if law.name not in fit}):
        say(f"left out, for {ranks} rank{'s' * (ranks > 1)} cannot judge them: {', '.join(omitted)}")
        pairs = [(law, one) for law, one in pairs if law.name in fit]
    if not pairs:
        raise InvalidOption(f"--ranks {ranks} can judge none of the selected laws; each takes more ranks")
    place = "" if choice.device == "cpu" else f"-{choice.device}"
    path = results or ROOT / "results" / "runs" / f"distributed-{profile}-{ranks}-ranks{place}.jsonl"
    started, rows, origin = time.monotonic(), list[dict[str, Any]](), measured_code.begin()
    published = choice.published()
    is_whole = published is not None and (ranks, profile, seed, results) == (DEFAULT_RANKS, "default", 0, None)
    scripts = script_files.directory_of(published or PUBLISHED)
    with ends_when_asked(), Worlds(ranks, device=choice.device) as worlds:
        by_reference = {one.name: name for name, one in choice.named().items() if one.name != name}
        explorer = RankedExplorer(worlds, PROFILES[profile], seed, by_reference, partial(_script_in, scripts))
        try:
            for law, one in pairs:
                rows.append(explorer.row(law, one, choice.claims(one)))
                if is_unexpected(rows[-1]):
                    say(told(rows[-1]))
        except Unjudged as error:
            say(str(error))
            what = str(error).partition("\n")[0]
            left = f"{len(rows)} of {len(pairs)} verdicts are in {path}" if rows else "there is no verdict"
            raise InvalidOption(f"{one.name} cannot be judged by law {law.name}: {what}; {left}") from error
        finally:
            if rows:
                header = results_file.header(seed, profile, choice.device, origin.suite)
                header["versions"] |= distributions({row["impl"] for row in rows})
                write(path, header, rows)
    if published and is_whole and len(rows) == len(pairs) and not any(map(is_unexpected, rows)):
        path = publish(path, published, header, rows, origin, say)
    for line in summary(rows, path, time.monotonic() - started, worlds.started):
        say(line)
    return int(any(map(is_unexpected, rows)))


def _script_in(directory: Path, law: str, implementation: str) -> str:
    """The script of a law and an implementation in a directory, "" if there is none."""
    try:
        return (directory / script_files.name_of(law, implementation)).read_text(encoding="utf-8")
    except OSError:
        return ""


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Exit on SIGTERM, so that no rank and no file is left behind."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def told(row: Row) -> str:
    """An unexpected verdict in a few lines."""
    detail = "\n  ".join(row["detail"].splitlines()[:MANY])
    return f"{row['impl']}, law {row['law']}: {row['verdict']}, declared {row['expected']}\n  {detail[:600]}"


def write(path: Path, header: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write results, and beside them the scripts of all faults."""
    results_file.write(path, header, rows)
    directory = script_files.directory_of(path)
    wanted = script_files.files(rows)
    for old in script_files.scripts_about(directory, {row["impl"] for row in rows}):
        if old.name not in wanted:
            old.unlink()
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (directory / name).write_text(text, encoding="utf-8")


def publish(path: Path, published: Path, header: Mapping[str, Any], rows: Sequence[Row], origin: Origin, say: Say) -> Path:
    """Write results of a complete run, now at ``path``, where they are published, or say why not. Returns where they are."""
    if fault := origin.fault():
        say(f"complete and as declared, but not published: {fault}")
        return path
    rows = [{**row, "fingerprints": measured_code.of_row(origin.sources, row, header)} for row in rows]
    write(published, header, rows)
    results_file.write(published, header, script_files.naming_files(published, rows))
    for row in standalone(rows):
        if (lines := len(row["program"].splitlines())) > MOST:
            say(f"{row['impl']}, law {row['law']}: its script has {lines} lines, more than {MOST}")
    try:
        report.write()
        page.write()
    except (OSError, ValueError, ModuleNotFoundError) as error:  # the results are written in any case
        say(str(error))
    return published


def summary(rows: Sequence[Row], path: Path, seconds: float, worlds: int) -> list[str]:
    """The end of a run: what is kept, what is not as declared, and where the results are."""
    unexpected = [row for row in rows if is_unexpected(row)]
    lines = ranking.lines(rows)
    lines += [f"  {row['impl']}, {row['law']}: {row['verdict']}, declared {row['expected']}" for row in unexpected[:SHOWN]]
    if len(unexpected) > SHOWN:
        lines.append(f"  and {len(unexpected) - SHOWN} others")
    counted = results_file.totals(rows)
    cases = f"{counted['rows']} verdicts of {counted['cases']} cases in {seconds:.0f} s, {worlds} worlds of ranks"
    return [*lines, f"{cases}; not as declared: {len(unexpected)}", f"results: {path}"]
