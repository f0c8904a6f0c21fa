"""Options of the conformance run, its parametrization over implementations, and what comes out of it."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import impls
from conformance import matrix, report, results_file
from conformance.law import LAWS, PROFILES, Explorer, Law
from conformance.progress import Live, Silent, display
from conformance.result import Result
from conformance.second_device import second

RESULTS = pytest.StashKey[list[Result]]()
EXPLORER = pytest.StashKey[Explorer]()
CHOSEN = pytest.StashKey[list[tuple[impls.Implementation, impls.Implementation]]]()
DISPLAY = pytest.StashKey[Silent]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--impl", action="append", default=[], help="a built-in implementation or pkg.mod:attr; repeatable")
    group.addoption("--like", default="nested", help="whose claims judge a callable that declares nothing")
    group.addoption("--device", default="cpu", help="a device type: cpu, cuda, ...")
    group.addoption("--profile", default="default", choices=list(PROFILES), help="how many cases a law is tried on")
    group.addoption("--seed", type=int, default=0, help="seed of the programs that are drawn")
    group.addoption("--results", type=Path, help="where to write the results; see README for the default")


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--impl") or impls.names()
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
    config.stash[RESULTS] = []
    config.stash[DISPLAY] = Silent()


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


def pytest_collection_finish(session: pytest.Session) -> None:
    total = sum("hold" in getattr(item, "fixturenames", ()) for item in session.items)
    if total:
        file = session.config.get_terminal_writer()._file
        session.config.stash[DISPLAY] = display(total, file)


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    live = isinstance(config.stash[DISPLAY], Live)
    return (report.outcome, "", "") if live and report.when == "call" else None


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Callable[[Law], None]:
    """Holds one implementation to a law and fails the test when the verdict is not the declared one."""
    return functools.partial(_hold, request.config.stash, *request.param)


def _hold(stash: pytest.Stash, implementation: impls.Implementation, claims: impls.Implementation, law: Law) -> None:
    result = stash[EXPLORER].hold(law, implementation, claims)
    stash[RESULTS].append(result)
    stash[DISPLAY].advance(law.name, implementation.name, result.as_declared)
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
    config.stash[DISPLAY].stop()
    results = config.stash[RESULTS]
    if not results:
        return
    rows = [result.row() for result in results]
    writer = config.get_terminal_writer()
    width = writer.fullwidth if writer._file.isatty() else None
    terminalreporter.write_line(matrix.terminal(rows, width=width, color=bool(writer.hasmarkup)))
    better = [r for r in results if r.as_declared and r.verdict is not r.expected]
    for result in better:
        terminalreporter.write_line(f"better than {config.getoption('--like')}: {result.law.name} {result.verdict}")
    path, published = _destination(config)
    explorer = config.stash[EXPLORER]
    header = results_file.header(explorer.seed, config.getoption("--profile"), explorer.device)
    results_file.write(path, header, rows)
    terminalreporter.write_line(f"results: {path}")
    for name in dict.fromkeys(row["impl"] for row in rows if row["program"]):
        terminalreporter.write_line(f"programs: {sys.executable} -m conformance.report --show {name} --results {path}")
    if published:
        report.main(["--write"])


def _destination(config: pytest.Config) -> tuple[Path, bool]:
    """Where the results go. A complete run in which all is as declared is published: README's matrix is made from it."""
    if config.getoption("--results"):
        return config.getoption("--results"), False
    device, profile = config.stash[EXPLORER].device, config.getoption("--profile")
    directory, chosen = results_file.ROOT / "results", config.getoption("--impl")
    if profile == "default" and not chosen and not config.getoption("--seed") and _complete(config):
        return directory / f"conformance-{device}.jsonl", True
    name = "-".join([profile, device, *(re.sub(r"\W+", "-", one) for one in chosen)])
    return directory / "runs" / f"{name[:100]}.jsonl", False


def _complete(config: pytest.Config) -> bool:
    """Whether every law there is was held for every implementation chosen."""
    held = config.stash[RESULTS]
    modules = {result.law.check.__module__.rsplit(".", 1)[-1] for result in held}
    files = {path.stem for path in (Path(__file__).parent / "laws").glob("test_*.py")}
    kinds = [implementation.kind for implementation, _ in config.stash[CHOSEN]]
    due = sum(kinds.count(law.kind) for law in LAWS.values())
    return modules == files and len(held) == due and all(result.as_declared for result in held)
