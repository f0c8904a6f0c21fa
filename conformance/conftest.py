"""Options of the conformance run, its parametrization over implementations, and what comes out of it."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import impls
from conformance import matrix, report, results_file
from conformance.gathering import PROPERTY, Gathering
from conformance.law import LAWS, PROFILES, Explorer, Law
from conformance.progress import Live
from conformance.result import Result
from conformance.results_file import Row, is_unexpected
from conformance.second_device import second
from conformance.workers import scheduler

GATHERING = pytest.StashKey[Gathering]()
EXPLORER = pytest.StashKey[Explorer]()
LEFT_OUT = pytest.StashKey[dict[str, str]]()
CHOSEN = pytest.StashKey[list[tuple[impls.Implementation, impls.Implementation]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--impl", action="append", default=[], help="a built-in implementation or pkg.mod:attr; repeatable")
    group.addoption("--peers", action="store_true", help="without --impl: judge the peers that are installed")
    group.addoption("--like", default="nested", help="whose claims judge a callable that declares nothing")
    group.addoption("--device", default="cpu", help="a device type: cpu, cuda, ...")
    group.addoption("--profile", default="default", choices=list(PROFILES), help="how many cases a law is tried on")
    group.addoption("--seed", type=int, default=0, help="seed of the programs that are drawn")
    group.addoption("--results", type=Path, help="where to write the results; see README for the default")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = _left_out(config)
    offered = [name for name in impls.PEERS if name not in config.stash[LEFT_OUT]] if _peers(config) else impls.names()
    wanted = config.getoption("--impl") or offered
    try:
        like = impls.get(config.getoption("--like"))
        chosen = [impls.load(name, like.kind) if ":" in name else impls.get(name) for name in dict.fromkeys(wanted)]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    device = config.getoption("--device")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise pytest.UsageError(f"--device {device}: torch cannot use it here: {error}") from error
    if any(one.kind != "checkpoint" for one in chosen):
        second(device)  # the engine makes its threads for devices at the first backward, so a device has to be there before
    config.stash[CHOSEN] = [(one, one if one.declared else like) for one in chosen]
    config.stash[EXPLORER] = Explorer(device, PROFILES[config.getoption("--profile")], config.getoption("--seed"))
    config.stash[GATHERING] = Gathering()
    if not hasattr(config, "workerinput"):  # a worker of xdist, which leaves reporting to its controller
        config.pluginmanager.register(config.stash[GATHERING])


def _peers(config: pytest.Config) -> bool:
    return config.getoption("--peers") and not config.getoption("--impl")


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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of the suite itself run when they are asked for, not when implementations are judged."""
    asked = any("selftest" in argument for argument in config.args)
    return True if "selftest" in collection_path.parts and not asked else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hold" in metafunc.fixturenames:
        law = metafunc.function.law
        chosen = [pair for pair in metafunc.config.stash[CHOSEN] if pair[0].kind == law.kind]
        metafunc.parametrize("hold", chosen, ids=[one.name for one, _ in chosen], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A law of another kind than those of the implementations chosen is not about any of them."""
    kinds = {implementation.kind for implementation, _ in config.stash[CHOSEN]}
    laws = [getattr(getattr(item, "function", None), "law", None) for item in items]
    items[:] = [item for item, law in zip(items, laws, strict=True) if law is None or law.kind in kinds]


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    live = isinstance(config.stash[GATHERING].display, Live)
    return (report.outcome, "", "") if live and report.when == "call" else None


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Callable[[Law], None]:
    """Holds one implementation to a law and fails the test when the verdict is not the declared one."""
    return functools.partial(_hold, request.node, *request.param)


def _hold(node: pytest.Item, implementation: impls.Implementation, claims: impls.Implementation, law: Law) -> None:
    result = node.config.stash[EXPLORER].hold(law, implementation, claims)
    node.user_properties.append((PROPERTY, result.row()))
    if not result.as_declared:
        pytest.fail(_unexpected(result), pytrace=False)


def _unexpected(result: Result) -> str:
    claimed = "declared" if result.implementation.declared else "claimed by the implementation that it is judged like"
    found = f"{claimed}: {result.expected}; found: {result.verdict} in {result.counts[result.verdict]} of {result.cases} cases"
    lines = [
        f"{result.implementation.name}: {result.law.statement}",
        f"not tested: {result.vacuous}" if result.vacuous else found,
    ]
    lines += [result.detail] if result.detail else []
    if result.law.options:
        lines.append(f"checkpoint is called with {result.written_options()}")
    if result.program is not None:
        lines += ["", result.program.source]
    return "\n".join(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    config.stash[GATHERING].display.stop()
    rows = config.stash[GATHERING].rows
    if not rows:
        return
    writer = config.get_terminal_writer()
    width = writer.fullwidth if writer._file.isatty() else None
    terminalreporter.write_line(matrix.terminal(rows, width=width, color=bool(writer.hasmarkup)))
    for row in rows:
        if row["verdict"] != row["expected"] and not is_unexpected(row):
            terminalreporter.write_line(f"better than {config.getoption('--like')}: {row['law']} {row['verdict']}")
    for name, reason in config.stash[LEFT_OUT].items():
        terminalreporter.write_line(f"left out: {name}: {reason}")
    path, published = _destination(config, rows)
    explorer = config.stash[EXPLORER]
    header = results_file.header(explorer.seed, config.getoption("--profile"), explorer.device)
    header["versions"] |= _distributions(row["impl"] for row in rows)
    results_file.write(path, header, rows)
    terminalreporter.write_line(f"results: {path}")
    for name in dict.fromkeys(row["impl"] for row in rows if row["program"]):
        terminalreporter.write_line(f"programs: {sys.executable} -m conformance.report --show {name} --results {path}")
    if published:
        report.main(["--write"])


def _distributions(names: Iterable[str]) -> dict[str, str]:
    """The versions of the packages that these implementations come from, where they are peers."""
    needed = {impls.PEERS[name].distribution for name in names if name in impls.PEERS} - {""}
    return {name: metadata.version(name) for name in sorted(needed)}


def _destination(config: pytest.Config, rows: list[Row]) -> tuple[Path, bool]:
    """Where the results go. A complete run in which all is as declared is published: README's matrix is made from it."""
    if config.getoption("--results"):
        return config.getoption("--results"), False
    device, profile = config.stash[EXPLORER].device, config.getoption("--profile")
    directory, chosen = results_file.ROOT / "results", config.getoption("--impl")
    if profile == "default" and not chosen and not config.getoption("--seed") and _complete(config, rows):
        return directory / f"{'peers' if _peers(config) else 'conformance'}-{device}.jsonl", True
    name = "-".join([profile, device, *(["peers"] if _peers(config) else []), *(re.sub(r"\W+", "-", one) for one in chosen)])
    return directory / "runs" / f"{name[:100]}.jsonl", False


def _complete(config: pytest.Config, rows: list[Row]) -> bool:
    """Whether every law there is was held for every implementation that runs on the device, and all is as declared."""
    if any(impls.PEERS[name].runs_on(config.getoption("--device")) for name in config.stash[LEFT_OUT]):
        return False
    for path in sorted((Path(__file__).parent / "laws").glob("test_*.py")):
        importlib.import_module(f"conformance.laws.{path.stem}")  # workers had them, not the process that gathers
    chosen = [implementation for implementation, _ in config.stash[CHOSEN]]
    due = {(law.name, one.name) for law in LAWS.values() for one in chosen if one.kind == law.kind}
    return {(row["law"], row["impl"]) for row in rows} == due and not any(map(is_unexpected, rows))
