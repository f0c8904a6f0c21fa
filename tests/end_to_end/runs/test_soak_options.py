"""What a soak is asked to judge is tried first, and its findings count by whatever name that was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from conformance.reproducers import findings
from conformance.rows.results_file import ROOT
from conformance.soak import command
from reprise.command_line import main
from tests.unit.registry.test_installed import distribution

MODULE = """
from dataclasses import replace
import torch
import impls
from impls.nested import checkpoint as right

def doubling(function, *args, **kwargs):
    value = right(function, *args, **kwargs)
    double = lambda value: value * 2 if isinstance(value, torch.Tensor) else value
    return torch.utils._pytree.tree_map(double, value) if isinstance(value, tuple) else value

binding = "from bringing import doubling as checkpoint"
ours = replace(impls.get("nested"), name="one-of-ours", checkpoint=doubling, binding=binding)
"""
DRIVER = """
import sys
from conformance.soak import command as soak
from reprise.command_line import main
round = soak.Soak.round

def one_law(self, seed, tests=("conformance/laws/test_structure.py::test_unused_outputs",), until=None):
    return round(self, seed, tests)

def one_round(self, base, until):
    return len([one_law(self, base)])

soak.Soak.round, soak.Soak.run = one_law, one_round
soak.reduce_scripts = lambda rows, **_: rows  # which takes long, and is shown elsewhere
sys.exit(main(["soak", *sys.argv[1:]]))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with a distribution that brings an undeclared and a declared implementation, both at fault."""
    (tmp_path / "bringing.py").write_text(MODULE)
    distribution(tmp_path, "fancy", "fancy = bringing:doubling", "fancy-record = bringing:ours")
    return tmp_path


def soaked(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a soak of one law, in one round, says and ends with."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    told = ["-n", "0", "--profile", "quick", "--findings", str(site / "f.jsonl"), *arguments]
    return subprocess.run([sys.executable, "-c", DRIVER, *told], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_what_is_installed_is_open_and_tried_again_by_the_name_that_is_asked_for(site: Path) -> None:
    asked, called = ["--impl", "fancy", "--impl", "fancy-record"], {"bringing:doubling", "one-of-ours"}
    first = soaked(site, *asked)
    assert first.returncode == 1, first.stdout + first.stderr
    assert {kept.impl for kept in findings.read(site / "f.jsonl").open} == called
    assert "findings: 2 new, 2 open, 0 mended\n  unused_outputs: 2" in first.stdout
    assert "not judged now" not in first.stdout
    (site / "bringing.py").write_text(MODULE.replace("value * 2", "value"))
    second = soaked(site, *asked).stdout
    assert all(f"mended: {name}, law unused_outputs: diverges" in second for name in called)
    assert findings.read(site / "f.jsonl").open == []


@pytest.fixture
def refused(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """What a soak says that ends with status 2 before anything begins."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(command.Soak, "round", lambda *_: pytest.fail("something begins"))
    fresh = forkserver.ForkServer()  # another test's would be asked for by a copy of this process, which is not its parent
    for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(fresh, name))

    def said(*arguments: str) -> str:
        given = () if "--findings" in arguments else ("--findings", str(site / "f.jsonl"))
        status = main(["soak", "-n", "0", "--profile", "quick", *given, *arguments])
        told = capsys.readouterr()
        assert (status, told.out) == (2, "")
        return told.err

    yield said
    sys.modules.pop("bringing", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--impl", "best"], "--impl: no implementation is called 'best'; there are "),
        (["--device", "warp"], "--device warp: torch cannot use it here"),
        (["--impl", "fancy", "--like", "nope"], "--like: no implementation is called 'nope'"),
        (["--like", "nested"], "--like is 'nested' and has no effect"),
        (
            ["--impl", "fancy", "--impl", "bringing:doubling"],
            "--impl: fancy and bringing:doubling are both called 'bringing:doubling'",
        ),
        (["--impl", "bringing:missing"], "--impl: 'bringing:missing': 'bringing' has no attribute 'missing'"),
        (["--impl", "bringing:replace"], "bringing:replace cannot be judged"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_begins(
    site: Path, refused: Callable[..., str], arguments: list[str], message: str
) -> None:
    assert refused(*arguments).startswith(f"reprise soak: {message}")
    assert sorted(path.name for path in site.glob("f.*")) == []


def test_what_is_no_database_is_refused_and_no_lock_is_left(site: Path, refused: Callable[..., str]) -> None:
    (site / "text.jsonl").write_text("garbage\n")
    (site / "bytes.jsonl").write_bytes(b"\xff\xfe")
    for path, message in [
        (site, "is a directory; accepted is the path of a file"),
        (site / "text.jsonl", "line 1 is not JSON"),
        (site / "bytes.jsonl", "is not UTF-8 text"),
    ]:
        said = refused("--findings", str(path))
        assert f"Invalid value for --findings: {path}" in said
        assert message in said
    assert not [*site.glob("*.lock"), *site.parent.glob(f"{site.stem}*.lock")]
