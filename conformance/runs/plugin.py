"""Options of the conformance run, its parametrization over implementations, and what comes out of it."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import impls
from conformance.judging import cpu_kernels
from conformance.judging.law import LAWS, PROFILES, Law, all_laws
from conformance.judging.sandbox_worker import Setting
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.reports import matrix, page, report
from conformance.reports.run_summary import nothing_selected, summary
from conformance.reproducers import script_files
from conformance.rows import results_file, torch_releases
from conformance.rows.option_values import command, gibibytes, natural
from conformance.rows.results_file import Results, Row, is_unexpected, is_untested
from conformance.runs import destination, device_check
from conformance.runs.progress import Live
from conformance.runs.results_plugin import PROPERTY, RowCollector
from conformance.runs.selection import DEFAULT, Subject, subjects
from conformance.runs.xdist_scheduler import scheduler

COLLECTOR = pytest.StashKey[RowCollector]()
CHOSEN = pytest.StashKey[list[Subject]]()
WARNINGS = pytest.StashKey[list[str]]()
LEFT_OUT = pytest.StashKey[dict[str, str]]()
ORIGIN = pytest.StashKey[Origin]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--impl", action="append", default=[], help="a built-in or installed one, or pkg.mod:attr; repeatable")
    group.addoption("--peers", action="store_true", help="judge the peers that are installed; without --impl")
    group.addoption("--like", help=f"whose claims judge a callable that declares nothing: {DEFAULT} unless given")
    group.addoption("--device", default="cpu", help="a device type: cpu, cuda, ...")
    group.addoption("--profile", default="default", choices=list(PROFILES), help="how many cases a law is tried on")
    group.addoption("--seed", type=natural, default=0, help="seed of the programs that are drawn")
    group.addoption("--until", type=float, help="begin no law from then on, in seconds since 1970", metavar="TIME")
    group.addoption("--in-process", action="store_true", help="judge also what is not built in within this process")
    group.addoption(
        "--memory-limit", type=gibibytes, metavar="GIB", help=f"what is not built in may take, on Linux: {Setting.memory:g}"
    )
    group.addoption("--results", type=destination.results_path, help="where to write the results; see README for the default")


def pytest_configure(config: pytest.Config) -> None:
    cpu_kernels.hold()
    device = config.getoption("--device")
    try:
        device_check.require(device)
    except ValueError as error:
        raise pytest.UsageError(f"--device {device}: {error}") from error
    config.stash[COLLECTOR], config.stash[CHOSEN], config.stash[WARNINGS] = RowCollector(), [], []
    config.stash[LEFT_OUT] = _left_out(config)
    offered = [name for name in impls.PEERS if name not in config.stash[LEFT_OUT]] if _peers(config) else impls.names()
    try:
        config.stash[CHOSEN] = subjects(config.option, config.getoption("--impl") or offered)
        if not hasattr(config, "workerinput"):  # a worker of xdist, which leaves reporting to its controller
            config.stash[ORIGIN] = measured_code.begin()  # before workers import what they run
            config.pluginmanager.register(config.stash[COLLECTOR])
            config.stash[WARNINGS] = [warning for one in config.stash[CHOSEN] for warning in one.smoke()]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    for one in config.stash.get(CHOSEN, []):
        one.close()


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


def _left_out(config: pytest.Config) -> dict[str, str]:
    """The peers that cannot be judged here, and why; none where peers are not asked for."""
    left_out = {}
    for name, peer in impls.PEERS.items() if _peers(config) else ():
        if not peer.runs_on(config.getoption("--device")):
            left_out[name] = f"it computes on {peer.device} alone"
            continue
        try:
            peer.load()
        except ValueError as error:
            left_out[name] = str(error)
    return left_out


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
    """A law of another kind than those of the implementations chosen is not about any of them, nor is one of other devices."""
    kinds, device = {one.implementation.kind for one in config.stash[CHOSEN]}, config.getoption("--device")
    laws = [getattr(getattr(item, "function", None), "law", None) for item in items]
    due = [law is None or (law.kind in kinds and not law.lacks(device)) for law in laws]
    items[:] = [item for item, wanted in zip(items, due, strict=True) if wanted]


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    live = isinstance(config.stash[COLLECTOR].display, Live)
    return (report.outcome, "", "") if live and report.when == "call" else None


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Callable[[Law], None]:
    """Holds one implementation to a law and fails the test when the verdict is not the declared one."""
    return functools.partial(_hold, request.node, request.param)


def _hold(node: pytest.Item, subject: Subject, law: Law) -> None:
    until = node.config.getoption("--until")
    if until is not None and time.time() >= until:
        pytest.skip("the time is over")
    row = subject.hold(law)
    node.user_properties.append((PROPERTY, row))
    if is_unexpected(row):
        missing = sorted(law.needs - subject.claims.capabilities) if law.name not in subject.claims.known else []
        pytest.fail(_unexpected(row, subject.implementation.declared, missing), pytrace=False)


def _unexpected(row: Row, declared: bool, missing: Sequence[str]) -> str:
    claimed = "declared" if declared else "claimed by the implementation that it is judged like"
    claimed = f"without capability {', '.join(missing)}" if missing else claimed
    times = f"in {row['counts'][row['verdict']]} of {row['cases']} cases"
    found = "not tested:" if is_untested(row) else f"{claimed}: {row['expected']}; found: {row['verdict']} {times}"
    lines = [f"{row['impl']}: {row['statement']}", found, row["detail"]]
    lines += [f"checkpoint is called with {row['options']}"] if row["options"] else []
    return "\n".join([*filter(None, lines), "", row["program"]]).rstrip()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    config.stash[COLLECTOR].display.stop()
    rows = config.stash[COLLECTOR].rows
    if not rows:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and (told := nothing_selected(config.option.keyword)):
            terminalreporter.write_line(told)
        return
    writer = config.get_terminal_writer()
    width = writer.fullwidth if writer._file.isatty() else None
    terminalreporter.write_line(matrix.terminal(rows, width=width, color=bool(writer.hasmarkup)))
    terminalreporter.write_line(matrix.pace(rows))
    for row in rows:
        if row["verdict"] != row["expected"] and not is_unexpected(row):
            terminalreporter.write_line(f"better than {config.getoption('--like') or DEFAULT}: {row['law']} {row['verdict']}")
    for name, reason in config.stash[LEFT_OUT].items():
        terminalreporter.write_line(f"left out: {name}: {reason}")
    for law, lacking in _not_judged(config).items():
        terminalreporter.write_line(f"not judged here: {law}: it takes {lacking}")
    path, published, fault = _destination(config, rows)
    options, origin = config.option, config.stash[ORIGIN]
    header = results_file.header(options.seed, options.profile, options.device, origin.suite)
    header["versions"] |= _distributions(row["impl"] for row in rows)
    rows = [{**row, "fingerprints": measured_code.of_row(origin.sources, row, header)} for row in rows]
    if published and (other := torch_releases.counterpart(Results(path, header, tuple(rows), {}), _published_already())):
        rows = torch_releases.without_repeated_programs(rows, other)
    results_file.write(path, header, rows)  # before what takes time and may be interrupted
    if count := len(script_files.reducible(rows, every_fault=published)):
        _announce(terminalreporter, f"making scripts as small as can be: {count}, some seconds each")
    rows = script_files.complete(path, header, rows, published=published)
    if told := summary(rows, [*config.stash[WARNINGS]]):
        terminalreporter.write_line(told)
    _tell_where(terminalreporter, path, rows, some=not config.getoption("--results") and not _all_held(config, rows))
    if fault:
        terminalreporter.write_line(f"complete and as declared, but not published: {fault}")
    if published:
        report.main(["--write"])
        page.main([])
    _declare(terminalreporter, config, path, rows)


def _tell_where(reporter: pytest.TerminalReporter, path: Path, rows: Iterable[Row], *, some: bool) -> None:
    """Say where the results are, and how to see the programs in them."""
    reporter.write_line(f"results{' of some laws only' if some else ''}: {path}")
    for name in dict.fromkeys(row["impl"] for row in rows if row["program"]):
        reporter.write_line(f"programs: {command('reports.report', '--show', name, '--results', path)}")


def _published_already() -> tuple[Results, ...]:
    """The published results of the pinned release, those of which another release's are a repetition; none without them."""
    with suppress(FileNotFoundError):
        return tuple(
            one
            for one in report.results()
            if torch_releases.release(one.header["versions"]["torch"]) == torch_releases.pinned()
        )
    return ()


def _announce(reporter: pytest.TerminalReporter, told: str) -> None:
    """Say at once what is now begun, and takes time."""
    reporter.write_line(told)
    reporter.flush()


def _distributions(names: Iterable[str]) -> dict[str, str]:
    """The versions of the packages that these implementations come from, where they are peers."""
    needed = {impls.PEERS[name].distribution for name in names if name in impls.PEERS} - {""}
    return {name: metadata.version(name) for name in sorted(needed)}


def _destination(config: pytest.Config, rows: list[Row]) -> tuple[Path, bool, str]:
    """Where the results go, whether they are published, and why a complete run in which all is as declared is not.

    README's matrix is made from what is published.
    """
    if config.getoption("--results"):
        return config.getoption("--results"), False, ""
    device, peers = config.getoption("--device"), _peers(config)
    whole = _is_whole(config) and _complete(config, rows)
    fault = config.stash[ORIGIN].fault() if whole else ""
    if whole and not fault:
        return destination.published_path(device, peers=peers, torch=torch.__version__), True, ""
    chosen, some = config.getoption("--impl"), not _all_held(config, rows)
    return destination.path_of_run(config.getoption("--profile"), device, chosen, peers=peers, some=some), False, fault


def _complete(config: pytest.Config, rows: list[Row]) -> bool:
    """Whether every law there is was held for every implementation that runs on the device, and all is as declared."""
    if any(impls.PEERS[name].runs_on(config.getoption("--device")) for name in config.stash[LEFT_OUT]):
        return False
    if any(LAWS[name].packages for name in _not_judged(config)):  # they could be judged here, with another package
        return False
    return _all_held(config, rows) and not any(map(is_unexpected, rows))


def _all_held(config: pytest.Config, rows: list[Row]) -> bool:
    """Whether every law there is was held for every implementation that was chosen."""
    all_laws()
    chosen = [one.implementation for one in config.stash[CHOSEN]]
    laws = [law for law in LAWS.values() if not law.lacks(config.getoption("--device"))]
    due = {(law.name, one.name) for law in laws for one in chosen if one.kind == law.kind}
    return {(row["law"], row["impl"]) for row in rows} == due


def _not_judged(config: pytest.Config) -> dict[str, str]:
    """Laws about this type of device and these implementations that it takes more to judge than is here, and what."""
    all_laws()
    device = config.getoption("--device")
    kind, kinds = torch.device(device).type, {one.implementation.kind for one in config.stash[CHOSEN]}
    about = [law for law in LAWS.values() if kind in law.devices and law.kind in kinds]
    return {law.name: law.lacks(device) for law in about if law.lacks(device)}


def _declared_in(stem: str, chosen: Iterable[str], name: str) -> str:
    """The name of the file for a declaration, with the implementation's once: that of the results may end with all chosen."""
    slugs = [re.sub(r"\W+", "_", one) for one in (stem, *chosen, name)]
    kept = slugs[0].removesuffix("_" + "_".join(slugs[1:-1]))
    return f"{kept}_{slugs[-1]}_declared.py"


def _declare(reporter: pytest.TerminalReporter, config: pytest.Config, path: Path, rows: list[Row]) -> None:
    """For what declares nothing: what it can declare, printed and written beside the results."""
    for subject in config.stash[CHOSEN]:
        name, kind = subject.implementation.name, subject.implementation.kind
        if subject.implementation.declared or not any(row["impl"] == name for row in rows):
            continue
        all_laws()
        mine = [row for row in rows if row["impl"] == name]
        due = sum(law.kind == kind and not law.lacks(config.getoption("--device")) for law in LAWS.values())
        if len(mine) < due:
            reporter.write_line(f"declaration of {name}: only after a run of all {due} laws; this one held {len(mine)}")
            continue
        _announce(reporter, f"declaring {name}: laws whose programs depend on what is claimed are held again by that")
        text = subject.declaration(mine)
        beside = path.with_name(_declared_in(path.stem, [one.implementation.name for one in config.stash[CHOSEN]], name))
        beside.write_text(text, encoding="utf-8")
        reporter.write_line(f"declaration of {name}, to paste: {beside}\n\n{text}")
