"""Options of the conformance run, its parametrization over implementations, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import impls
from conformance.law import PROFILES, Explorer, Law, Result

collect_ignore = ["selftest"]
RESULTS = pytest.StashKey[list[Result]]()
EXPLORER = pytest.StashKey[Explorer]()
CHOSEN = pytest.StashKey[list[tuple[impls.Implementation, impls.Implementation]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--impl", action="append", default=[], help="a built-in implementation or pkg.mod:attr; repeatable")
    group.addoption("--like", default="nested", help="whose claims judge a callable that declares nothing")
    group.addoption("--device", default="cpu", help="a device type: cpu, cuda, ...")
    group.addoption("--profile", default="quick", choices=list(PROFILES), help="how many cases a law is tried on")
    group.addoption("--seed", type=int, default=0, help="seed of the programs that are drawn")


def pytest_configure(config: pytest.Config) -> None:
    try:
        like = impls.get(config.getoption("--like"))
        chosen = [impls.load(name) if ":" in name else impls.get(name) for name in config.getoption("--impl") or impls.names()]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    device = config.getoption("--device")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise pytest.UsageError(f"--device {device}: torch cannot use it here: {error}") from error
    config.stash[CHOSEN] = [(one, one if one.declared else like) for one in chosen]
    config.stash[EXPLORER] = Explorer(device, PROFILES[config.getoption("--profile")], config.getoption("--seed"))
    config.stash[RESULTS] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hold" in metafunc.fixturenames:
        chosen = metafunc.config.stash[CHOSEN]
        metafunc.parametrize("hold", chosen, ids=[one.name for one, _ in chosen], indirect=True)


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Callable[[Law], None]:
    """Holds one implementation to a law and fails the test when the verdict is not the declared one."""
    implementation, claims = request.param
    stash = request.config.stash

    def to(law: Law) -> None:
        result = stash[EXPLORER].hold(law, implementation, claims)
        stash[RESULTS].append(result)
        if not result.as_declared:
            pytest.fail(_unexpected(result), pytrace=False)

    return to


def _unexpected(result: Result) -> str:
    lines = [f"{result.implementation.name}: {result.law.statement}", f"declared {result.expected}, found {result.verdict}"]
    lines.append(result.vacuous or result.detail)
    if result.program is not None:
        lines += ["", result.program.source]
    return "\n".join(lines)
