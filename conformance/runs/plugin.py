"""Options of the conformance run, its parametrization over implementations, and what comes out of it."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import impls
from conformance.isolation import cpu_settings
from conformance.isolation.compiler_cache import own_compiler_cache
from conformance.isolation.sandbox_worker import Setting
from conformance.judging.law import LAWS, PROFILES, Law, all_laws
from conformance.judging.result import is_worse
from conformance.page import page
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.reports import matrix, report
from conformance.reports.run_summary import NotTaken, Run, first_failures, nothing_selected, passed, program_in, summary
from conformance.reproducers import script_files
from conformance.reproducers.script_files import Key
from conformance.rows import results_file, torch_releases
from conformance.rows.option_values import gibibytes, natural
from conformance.rows.results_file import Results, Row, is_unexpected, is_untested
from conformance.runs import destination, device_check, interrupts, kept_rows, option_probe
from conformance.runs.completeness import all_held, distributions, not_judged
from conformance.runs.kept_rows import KeptRows
from conformance.runs.progress import Live
from conformance.runs.row_collector import PROPERTY, RowCollector
from conformance.runs.selection import DEFAULT, Subject, left_out, missing_when_published, subjects
from conformance.runs.xdist_scheduler import scheduler
from impls import Implementation

COLLECTOR = pytest.StashKey[RowCollector]()
CHOSEN = pytest.StashKey[list[Subject]]()
WARNINGS = pytest.StashKey[list[str]]()
LEFT_OUT = pytest.StashKey[dict[str, str]]()
ORIGIN = pytest.StashKey[Origin]()
KEPT = pytest.StashKey[KeptRows]()
INTERRUPTED = pytest.StashKey[str]()
NOTHING = "interrupted before the first verdict: nothing is written"


def _read_by(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse: argparse shows the message of an ArgumentTypeError after the name of the option."""

    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return value


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    told = "judge this one: a built-in or installed name, or pkg.mod:attr; repeatable"
    group.addoption("--impl", action="append", default=[], help=told)
    group.addoption("--peers", action="store_true", help="judge the installed peers instead of the built-in implementations")
    group.addoption("--like", help=f"by whose claims a callable without a declaration is judged; {DEFAULT} by default")
    group.addoption("--device", default="cpu", help="device type to run on: cpu, cuda, ...")
    group.addoption("--profile", default="default", choices=list(PROFILES), help="how many programs to try for each law")
    group.addoption("--seed", type=_read_by(natural), default=0, help="seed for drawing programs")
    group.addoption("--until", type=float, help="start no law after this time, in seconds since 1970", metavar="TIME")
    group.addoption("--in-process", action="store_true", help="judge code that is not built in within this process")
    group.addoption(
        "--memory-limit",
        type=_read_by(gibibytes),
        metavar="GIB",
        help=f"memory that code that is not built in may use, on Linux; {Setting.memory:g} by default",
    )
    told = "judge again only what was published from older code, keep the other rows, and publish both; on the CPU"
    group.addoption("--older", action="store_true", help=told)
    told = "write the results to this file; by default below results/runs, or where they are published"
    group.addoption("--results", type=_read_by(destination.results_path), help=told)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COLLECTOR], config.stash[CHOSEN], config.stash[WARNINGS] = RowCollector(), [], []
    config.add_cleanup(interrupts.end_at_second(functools.partial(_clean_up, config)))
    interrupts.unblock()
    cpu_settings.hold()
    until_end = ExitStack()
    config.add_cleanup(until_end.close)
    until_end.enter_context(device_check.no_seeds_for_absent_devices())
    if not hasattr(config, "workerinput"):  # a worker inherits it by its environment
        until_end.enter_context(own_compiler_cache(compiles_here=not config.getoption("numprocesses", None)))
    if not {"", here := str(config.invocation_params.dir)} & {*sys.path}:
        sys.path.insert(0, here)  # so that modules in the user's directory can be imported, as by python -m pytest
    # Its handler raises errors of logging calls in programs, which logging otherwise writes to standard error.
    config.pluginmanager.set_blocked("logging-plugin")
    device = config.getoption("--device")
    try:
        device_check.require(device)
    except ValueError as error:
        raise pytest.UsageError(f"--device {device}: {error}") from error
    config.stash[LEFT_OUT] = left_out(config.option.peers, config.option.impl, config.option.device)
    there = impls.PEERS if _peers(config) else (*impls.names(), *impls.COMPILED)
    offered = [name for name in there if name not in config.stash[LEFT_OUT]]
    try:
        config.stash[CHOSEN] = subjects(config.option, config.getoption("--impl") or offered)
        if not hasattr(config, "workerinput"):  # a worker of xdist, which leaves reporting to its controller
            config.stash[ORIGIN] = measured_code.begin()  # before workers import what they run
            config.pluginmanager.register(config.stash[COLLECTOR])
            config.stash[WARNINGS] = [warning for one in config.stash[CHOSEN] for warning in one.smoke()]
        config.stash[KEPT] = _kept(config)
        config.pluginmanager.register(config.stash[KEPT])
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _kept(config: pytest.Config) -> KeptRows:
    """The rows of published results that are not judged again. Raises ValueError if the run would not replace these results."""
    if not config.getoption("--older") or hasattr(config, "workerinput"):  # which the controller informs
        return KeptRows()
    if not _is_whole(config) or config.option.keyword or config.getoption("--device") != "cpu":
        raise ValueError(f"--older is for {kept_rows.ACCEPTED}")
    header = _header(config, [one.name for one in _implementations(config)])
    return kept_rows.kept_rows(_published_path(config), header, config.stash[ORIGIN].sources, config.stash[CHOSEN])


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Workers of xdist are started here."""
    try:
        with interrupts.blocked():
            yield
    except KeyboardInterrupt:
        session.config.stash[INTERRUPTED] = NOTHING
        raise


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    for one in config.stash.get(CHOSEN, []):
        one.close()
    if told := config.stash.get(INTERRUPTED, ""):  # the last line that a user sees
        config.get_terminal_writer().line(told)


def pytest_report_header(config: pytest.Config) -> list[str]:
    origin = config.stash.get(ORIGIN, None)  # a worker of xdist has none
    fault = origin.fault() if origin and not config.option.keyword and _is_whole(config) else ""
    return [*config.stash[WARNINGS], *([f"this run will not be published: {fault}"] if fault else [])]


def _is_whole(config: pytest.Config) -> bool:
    """Whether a run with these options is published if all is as declared."""
    given = [config.getoption(name) for name in ("--results", "--impl", "--seed")]
    return config.getoption("--profile") == "default" and not any(given)


def _peers(config: pytest.Config) -> bool:
    return bool(config.getoption("--peers"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers share out laws and files, not single tests; ``--dist`` with another value than xdist's default changes that."""
    return scheduler(config, log) if config.getoption("dist") == "load" else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hold" in metafunc.fixturenames:
        law = metafunc.function.law
        chosen = [one for one in metafunc.config.stash[CHOSEN] if one.implementation.kind == law.kind]
        metafunc.parametrize("hold", chosen, ids=[one.implementation.name for one in chosen], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out laws of other kinds than the chosen implementations', and laws that this device or machine cannot judge."""
    kinds, device = {one.implementation.kind for one in config.stash[CHOSEN]}, config.getoption("--device")
    laws = [getattr(getattr(item, "function", None), "law", None) for item in items]
    due = [law is None or (law.kind in kinds and not law.lacks(device)) for law in laws]
    items[:] = [item for item, wanted in zip(items, due, strict=True) if wanted]


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    live = isinstance(config.stash[COLLECTOR].display, Live)
    if report.when == "call" and report.failed and PROPERTY in dict(report.user_properties):
        return "unexpected", "" if live else "F", "UNEXPECTED"  # the summary reports it in its own order, so pytest need not
    return (report.outcome, "", "") if live and report.when == "call" else None


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Callable[[Law], None]:
    """Judges one implementation by a law, and fails the test if the verdict is not the declared one."""
    return functools.partial(_hold, request.node, request.param)


def _hold(node: pytest.Item, subject: Subject, law: Law) -> None:
    until = node.config.getoption("--until")
    if until is not None and time.time() >= until:
        pytest.skip("the time is over")
    with interrupts.not_lost():
        row = subject.hold_apart_from_rounding(law)
    node.user_properties.append((PROPERTY, row))
    if is_unexpected(row):
        pytest.fail(_unexpected(row, _expectation(subject, law)), pytrace=False)


def _expectation(subject: Subject, law: Law) -> str:
    """What is expected of an implementation under a law, and why."""
    claims = subject.claims
    who = "it" if subject.implementation.declared else claims.name
    expected = f"expected: {claims.expected(law.name, law.needs)}"
    missing = sorted(law.needs - claims.capabilities)
    if missing and law.name not in claims.known:
        return f"{expected}, since the law needs {', '.join(missing)}, which {who} does not declare"
    return f"{expected}, as {who} declares"


def _unexpected(row: Row, expectation: str) -> str:
    times = f"in {row['counts'][row['verdict']]} of {row['cases']} cases"
    found = "not tested:" if is_untested(row) else f"{expectation}; found: {row['verdict']} {times}"
    lines = [f"{row['impl']}: {row['statement']}", found, row["detail"]]
    lines += [f"checkpoint is called with {row['options']}"] if row["options"] else []
    return "\n".join([*filter(None, lines), "", program_in(row["program"])]).rstrip()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    config.stash[COLLECTOR].display.stop()
    rows = config.stash[COLLECTOR].rows
    interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
    kept = config.stash[KEPT]
    if not rows and (interrupted or not kept.rows):
        _tell_nothing_judged(terminalreporter, exitstatus, config)
        return
    rows = kept.joined(rows, [one.name for one in _implementations(config)])
    if interrupted:
        _announce(terminalreporter, "\ninterrupted: what was judged is written; interrupt again to end without it")
    for name, reason in config.stash[LEFT_OUT].items():
        terminalreporter.write_line(f"left out: {name}: {reason}")
    for law, lacking in not_judged(_implementations(config), config.getoption("--device")).items():
        terminalreporter.write_line(f"not judged here: {law}: it needs {lacking}")
    if config.option.verbose > 0:
        _tell_all(terminalreporter, rows)
    path, published, fault = _destination(config, rows)
    header = _header(config, [row["impl"] for row in rows]) | ({results_file.KEPT: len(kept.rows)} if kept.rows else {})
    rows = [{"fingerprints": measured_code.of_row(config.stash[ORIGIN].sources, row, header), **row} for row in rows]
    rows = script_files.keeping_scripts(path, header, rows) if published else rows
    results_file.write(path, header, rows)  # before what takes time, may be interrupted, or may fail
    if published and (other := torch_releases.counterpart(Results(path, header, tuple(rows), {}), _published_already())):
        rows = torch_releases.without_repeated_programs(rows, other)
    declared: list[str] = []
    not_taken: NotTaken = {}
    try:
        if not interrupted:
            not_taken = _not_taken(config, rows)
            asked = None if published else _run(config, path, rows, [], not_taken).first
            rows = _completed(terminalreporter, path, header, rows, asked)
            declared = _declare(terminalreporter, config, path, rows)
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        verdicts = "1 verdict is" if len(rows) == 1 else f"{len(rows)} verdicts are"
        told = f"interrupted: {verdicts} in {path}; scripts are not shrunk, and no declaration is made"
        config.stash[INTERRUPTED] = told
    if fault:
        terminalreporter.write_line(f"complete and as declared, but not published: {fault}")
    _tell_failures(terminalreporter, config, _run(config, path, rows, declared, not_taken))


def _tell_nothing_judged(reporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Say why there is no verdict, if that is known."""
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        config.stash[INTERRUPTED] = NOTHING
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and (told := nothing_selected(config.option.keyword)):
        reporter.write_line(told)


def _completed(
    reporter: pytest.TerminalReporter, path: Path, header: Mapping[str, Any], rows: list[Row], asked: Set[Key] | None
) -> list[Row]:
    """The rows with scripts made small: those asked for, or all. If all are published, sections and page are made again."""
    if count := len(script_files.due(rows, asked=asked, directory=script_files.directory_of(path))):
        scripts = "script" if count == 1 else "scripts"
        _announce(reporter, f"making {count} {scripts} small, some seconds each; Ctrl-C skips this")
    rows = script_files.complete(path, header, rows, published=asked is None, asked=asked)
    if asked is None:
        _publish(reporter)
    return rows


def _publish(reporter: pytest.TerminalReporter) -> None:
    """Make generated sections and the page again, or say why that failed; the results are written in any case."""
    try:
        report.write()
        page.write()
    except (OSError, ValueError, ModuleNotFoundError) as error:
        reporter.write_line(str(error))


def _clean_up(config: pytest.Config) -> None:
    """End the processes that this run started, and show the cursor, which its display has hidden."""
    for one in config.stash[CHOSEN]:
        one.close()
    script_files.end_reductions()
    config.stash[COLLECTOR].display.stop()


def _tell_all(reporter: pytest.TerminalReporter, rows: Sequence[Row]) -> None:
    """Print the verdict of each law, and which laws took longest."""
    writer = reporter.config.get_terminal_writer()
    width = writer.fullwidth if writer._file.isatty() else None
    reporter.write_line(matrix.terminal(rows, width=width, color=bool(writer.hasmarkup)))
    reporter.write_line(matrix.pace(rows))


def _not_taken(config: pytest.Config, rows: Sequence[Row]) -> NotTaken:
    """By implementation, the options that it does not take; only checkpoints that raise under a law with options are probed."""
    raising = {row["impl"] for row in rows if is_worse(row) and row["verdict"] in ("refuses", "crashes") and passed(row["law"])}
    asked = [one for one in config.stash[CHOSEN] if one.implementation.name in raising]
    asked = [one for one in asked if one.implementation.kind == "checkpoint"]
    return {one.implementation.name: option_probe.not_taken(one.setting.name, config.getoption("--device")) for one in asked}


def _run(config: pytest.Config, path: Path, rows: Sequence[Row], declared: Sequence[str], not_taken: NotTaken) -> Run:
    like = config.getoption("--like") or DEFAULT
    return Run(rows, path, functools.partial(_again, config), like, [*config.stash[WARNINGS]], declared, not_taken)


def _tell_failures(reporter: pytest.TerminalReporter, config: pytest.Config, run: Run) -> None:
    """Print the first failures with their scripts, and then the summary, so that it is the last thing on the screen."""
    chosen = {one.implementation.name: one for one in config.stash[CHOSEN]}
    for text in first_failures(run, lambda row: _unexpected(row, _expectation(chosen[row["impl"]], LAWS[row["law"]]))):
        reporter.write_line(f"\n{text}\n")
    reporter.write_sep("=", "conformance")
    for line in summary(run):
        reporter.write_line(line)


def _again(config: pytest.Config, like: str) -> str:
    """The command that repeats this run by other claims; its results do not replace these."""
    return _command([*_without(config, "--like", "--results"), "--like", like], os.environ.get("PYTHONPATH", ""))


def _command(arguments: Sequence[str], paths: str) -> str:
    prefix = f"PYTHONPATH={shlex.quote(paths)} " if paths else ""
    return prefix + shlex.join([sys.executable, "-m", "pytest", *arguments])


def _without(config: pytest.Config, *options: str) -> list[str]:
    """The arguments of this run without some options that take a value."""
    given = [str(one) for one in config.invocation_params.args]
    left_out = {place + more for place, one in enumerate(given) if one in options for more in (0, 1)}
    joined = tuple(f"{one}=" for one in options)
    return [one for place, one in enumerate(given) if place not in left_out and not one.startswith(joined)]


def _published_already() -> tuple[Results, ...]:
    """The published results of the pinned release, whose scripts another release's need not repeat; () if there are none."""
    with suppress(FileNotFoundError):
        return tuple(
            one
            for one in report.results()
            if torch_releases.release(one.header["versions"]["torch"]) == torch_releases.pinned()
        )
    return ()


def _announce(reporter: pytest.TerminalReporter, told: str) -> None:
    """Print at once what begins now and will take time."""
    reporter.write_line(told)
    reporter.flush()


def _header(config: pytest.Config, names: Iterable[str]) -> dict[str, Any]:
    """The header of a run with implementations of these names. It initialises an accelerator, so laws must have run before."""
    options = config.option
    header = results_file.header(options.seed, options.profile, options.device, config.stash[ORIGIN].suite)
    header["versions"] |= distributions(names)
    return header


def _published_path(config: pytest.Config) -> Path:
    return destination.published_path(config.getoption("--device"), peers=_peers(config), torch=torch.__version__)


def _destination(config: pytest.Config, rows: list[Row]) -> tuple[Path, bool, str]:
    """Where the results go, whether they are published, and why not, if the run is complete and all is as declared.

    The matrix is made from what is published.
    """
    if config.getoption("--results"):
        return config.getoption("--results"), False, ""
    device, peers = config.getoption("--device"), _peers(config)
    whole = _is_whole(config) and _complete(config, rows)
    left = config.stash[LEFT_OUT]
    fault = (missing_when_published(left, device) or config.stash[ORIGIN].fault()) if whole else ""
    if whole and not fault:
        return _published_path(config), True, ""
    chosen, some = config.getoption("--impl"), not all_held(_implementations(config), device, rows)
    like = config.getoption("--like")
    profile = config.getoption("--profile")
    return destination.path_of_run(profile, device, chosen, peers=peers, some=some, like=like), False, fault


def _complete(config: pytest.Config, rows: list[Row]) -> bool:
    """Whether each implementation was judged by every law on the device, and all verdicts are as declared."""
    device = config.getoption("--device")
    if any(LAWS[name].packages for name in not_judged(_implementations(config), device)):  # installing a package would do
        return False
    return all_held(_implementations(config), device, rows) and not any(map(is_unexpected, rows))


def _implementations(config: pytest.Config) -> list[Implementation]:
    return [one.implementation for one in config.stash[CHOSEN]]


def _declare(reporter: pytest.TerminalReporter, config: pytest.Config, path: Path, rows: Sequence[Row]) -> list[str]:
    """Write declarations for implementations without one, or with another, beside the results. Returns lines about them."""
    told = []
    for subject in config.stash[CHOSEN]:
        name, kind = subject.implementation.name, subject.implementation.kind
        mine = [row for row in rows if row["impl"] == name]
        is_ours = ":" not in subject.setting.name  # built in, a peer or installed: correct its own declaration instead
        if not mine or is_ours or (subject.implementation.declared and not any(map(is_unexpected, mine))):
            continue
        all_laws()
        due = sum(law.kind == kind and not law.lacks(config.getoption("--device")) for law in LAWS.values())
        if len(mine) < due:
            told.append(f"no declaration of {name}: that takes a run of all {due} laws, and this one judged by {len(mine)}")
            continue
        _announce(reporter, f"making a declaration for {name}: some laws are judged again by what it claims")
        beside = path.with_name(destination.declared_in(path.stem, [one.name for one in _implementations(config)], name))
        beside.write_text(subject.declaration(mine), encoding="utf-8")
        told.append(f"declaration of {name}: {beside}; judge by it: {_judging(config, beside)}")
    return told


def _judging(config: pytest.Config, declaration: Path) -> str:
    """The command that repeats this run by the declaration in a file."""
    paths = os.pathsep.join(filter(None, [str(declaration.resolve().parent), os.environ.get("PYTHONPATH", "")]))
    arguments = _without(config, "--impl", "--like", "--results")
    return _command([*arguments, "--impl", f"{declaration.stem}:IMPLEMENTATION"], paths)
