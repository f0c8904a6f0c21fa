"""Peers: their names, what is said of those that are not there, and that what they need is pinned."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import impls
from impls import PEERS, Peer

ROOT = Path(__file__).parents[3]


def test_names_of_peers_are_their_own() -> None:
    assert PEERS.keys().isdisjoint(impls.names())


def test_torchs_own_peer_needs_no_package() -> None:
    assert (impls.get("torch-selective").name, impls.get("torch-selective").kind) == ("torch-selective", "checkpoint")


def test_a_peer_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"best": Peer("checkpoint", "best", "no_such_package", "no-such-package")}
    monkeypatch.setattr(impls, "PEERS", peers)
    told = (
        "the peer 'best' cannot be had: it needs no-such-package, which is not installed here; nox -s peers and nox -s compare "
        "have environments of their own, and install it there or say why they cannot"
    )
    with pytest.raises(ValueError, match=told):
        impls.get("best")


@pytest.mark.parametrize("error", [ImportError("no such name"), RuntimeError("no compiler")])
def test_a_peer_that_does_not_import_says_why(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_peer.py").write_text(f"raise {error!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("impls.peers.__path__", [str(tmp_path)])
    with pytest.raises(ValueError, match=f"importing 'sys' failed: {type(error).__name__}: {error}"):
        Peer("checkpoint", "broken_peer", "sys", "python").load()
    assert "impls.peers.broken_peer" not in sys.modules


@pytest.mark.parametrize(("device", "cpu", "cuda"), [("", True, True), ("cuda", False, True)])
def test_a_peer_may_be_of_one_type_of_device(device: str, cpu: bool, cuda: bool) -> None:
    peer = Peer("checkpoint", "best", device=device)
    assert (peer.runs_on("cpu"), peer.runs_on("cuda:1")) == (cpu, cuda)


def test_what_peers_need_is_pinned() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pinned = {requirement.partition("==")[0] for requirement in groups["peers"]}
    assert pinned == {peer.distribution for peer in PEERS.values()} - {""}
    assert all("==" in requirement for requirement in [*groups["peers"], *groups["peers-need"][:-1]])


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ([], ["--peers"]),
        (["--torch", "2.13.0", "--impl", "torch-remat"], ["--impl", "torch-remat"]),
        (["--impl=torch-remat"], ["--impl=torch-remat"]),
    ],
)
def test_their_session_judges_all_of_them_or_those_that_are_named(given: list[str], due: list[str]) -> None:
    pytest.importorskip("nox")
    import noxfile

    ran: list[tuple[Any, ...]] = []
    nothing = SimpleNamespace(
        posargs=given, invoked_from=ROOT, install=lambda *_, **__: None, run=lambda *a, **_: ran.append(a)
    )
    noxfile.peers(nothing)
    judging, *marking = ran
    assert list(judging[judging.index("auto") + 1 :]) == due
    assert marking == ([] if "--impl" in due[0] else [("python", "-m", "reprise", "published", "--mark")])  # what is published
