"""Implementations that installed distributions bring, by distributions that are no more than their metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

import impls
from conformance.reports.report import limits
from tests.support.synthetic_results import row

MODULE = """
from impls import Implementation
from impls.nested import checkpoint

ours = Implementation("ours", checkpoint)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is searched for distributions and modules."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bringing.py").write_text(MODULE)
    return tmp_path


def distribution(site: Path, name: str, *entry_points: str) -> None:
    directory = site / f"{name}-1.0.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (directory / "entry_points.txt").write_text("\n".join([f"[{impls.ENTRY_POINTS}]", *entry_points]) + "\n")


def test_what_is_installed_is_found_by_its_name(site: Path) -> None:
    distribution(site, "fancy", "fancy-record = bringing:ours", "fancy = bringing:checkpoint")
    assert impls.installed() == {"fancy-record": "bringing:ours", "fancy": "bringing:checkpoint"}
    record, bare = impls.find("fancy-record"), impls.find("fancy")
    assert (record.name, record.declared) == ("ours", True)
    assert (bare.name, bare.declared) == ("bringing:checkpoint", False)
    assert impls.names() == tuple(name for name in impls.names() if name not in impls.installed())


def test_a_broken_one_says_so_and_breaks_no_other(site: Path) -> None:
    distribution(site, "broken", "lost = nowhere.at.all:checkpoint", "formless = bringing")
    distribution(site, "fancy", "fancy = bringing:checkpoint")
    assert impls.find("fancy").subject is impls.get("nested").subject
    with pytest.raises(ValueError, match=r"installed implementation 'lost': .*importing 'nowhere.at.all' failed"):
        impls.find("lost")
    with pytest.raises(ValueError, match=r"installed implementation 'formless': 'bringing' is not of the form pkg.mod:attr"):
        impls.find("formless")


def test_the_name_of_a_built_in_one_is_refused(site: Path) -> None:
    distribution(site, "bold", "nested = bringing:checkpoint")
    with pytest.raises(
        ValueError, match=r"bold \(entry point nested = bringing:checkpoint\) .* name of a built-in implementation"
    ):
        impls.installed()
    assert impls.find("nested") is impls.get("nested")


def test_one_name_for_two_things_is_refused(site: Path) -> None:
    distribution(site, "first", "fancy = bringing:checkpoint")
    distribution(site, "second", "fancy = bringing:checkpoint")
    assert impls.installed() == {"fancy": "bringing:checkpoint"}
    distribution(site, "third", "fancy = bringing:ours")
    with pytest.raises(ValueError, match=r"third .* and .* both call|.* and third .* both call"):
        impls.installed()


def test_an_unknown_name_lists_what_is_installed(site: Path) -> None:
    distribution(site, "fancy", "fancy = bringing:checkpoint")
    with pytest.raises(ValueError, match=r"no implementation is called 'best'; there are plain, .* installed: fancy"):
        impls.find("best")


@pytest.mark.parametrize(("name", "called"), [("fancy", "bringing:checkpoint"), ("record", "ours"), ("bringing:ours", "ours")])
def test_results_are_found_by_the_name_under_which_it_is_installed(site: Path, name: str, called: str) -> None:
    distribution(site, "fancy", "fancy = bringing:checkpoint", "record = bringing:ours")
    assert limits([row("masks", called, "diverges")], name).startswith(f"# {called} on cpu, law masks")
    with pytest.raises(ValueError, match=f"--show: no result has impl '{name}'; there are older"):
        limits([row("masks", "older", "diverges")], name)


def test_results_of_what_cannot_be_imported_here_are_found(site: Path) -> None:
    distribution(site, "fancy", "fancy = nowhere.at.all:checkpoint")
    assert "law masks" in limits([row("masks", "nowhere.at.all:checkpoint", "diverges")], "fancy")
