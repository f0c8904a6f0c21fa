"""What may be published: results of a checkout whose commit is known, without changes, and the same at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources
from conformance.provenance.measured_code import begin, of_roots, of_row
from conformance.rows.results_file import ROOT
from tests.support.repositories import commit

CODE = "impls/ours.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with code, results and pages, all committed."""
    for name in (CODE, "results/some.json", "README.md", "docs/matrix.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("LIMIT = 1\n")
    commit(tmp_path)
    return tmp_path


def test_a_clean_checkout_may_be_published(root: Path) -> None:
    origin = begin(root)
    assert (origin.fault(), origin.suite["dirty"], len(origin.commit)) == ("", False, 40)
    origin.require()


@pytest.mark.parametrize("name", [CODE, "impls/new.py"])
def test_changes_that_are_not_committed_are_not_published(name: str, root: Path) -> None:
    (root / name).write_text("LIMIT = 2\n")
    origin = begin(root)
    assert origin.suite["dirty"]
    with pytest.raises(ValueError, match=rf"nothing is published from here: there are uncommitted changes: {name}; commit"):
        origin.require()


def test_results_and_pages_are_what_is_published_and_no_changes(root: Path) -> None:
    for name in ("results/some.json", "results/new.json", "README.md", "docs/matrix.md"):
        (root / name).write_text("2")
    assert not begin(root).fault()


def test_code_that_changes_while_it_is_measured_is_not_published(root: Path) -> None:
    origin = begin(root)
    (root / CODE).write_text("LIMIT = 2\n")
    commit(root, "meanwhile")
    assert origin.fault() == f"files were changed while it was measured: {CODE}; measure it again"


def test_without_a_repository_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert begin(tmp_path).suite == {"commit": "unknown", "dirty": False}
    assert "is no git repository" in begin(tmp_path).fault()


def test_of_many_changed_files_some_are_named(root: Path) -> None:
    for number in range(7):
        (root / "impls" / f"new_{number}.py").touch()
    assert "impls/new_4.py and 2 more; commit them" in begin(root).fault()


def row(impl: str) -> dict[str, Any]:
    return {"law": "keyword_arguments", "impl": impl}


def test_a_row_has_the_fingerprints_of_its_implementation_and_its_law() -> None:
    sources, header = Sources(ROOT), {"profile": "default", "versions": {}}
    nested, legacy, mine = (of_row(sources, row(name), header) for name in ("nested", "legacy", "pkg.mod:mine"))
    assert nested["law"] == legacy["law"]
    assert nested["implementation"] != legacy["implementation"]
    assert list(mine) == ["law"]
    assert of_row(sources, row("nested"), {**header, "profile": "quick"})["law"] != nested["law"]


def test_the_fingerprint_of_a_peer_has_the_version_of_its_package() -> None:
    sources, versions = Sources(ROOT), [{"fairscale": "0.4.13"}, {"fairscale": "0.5"}]
    headers = [{"profile": "default", "versions": one} for one in versions]
    one, other = (of_row(sources, row("fairscale"), header)["implementation"] for header in headers)
    assert one != other
    assert measured_code.packages(["fairscale", "nested"], versions[1]) == ["fairscale==0.5"]


def test_what_stands_alone_is_not_followed(root: Path) -> None:
    (root / "impls" / "deep.py").write_text("DEPTH = 1\n")
    (root / "benches").mkdir()
    (root / "benches" / "one.py").write_text("from impls.deep import DEPTH\ndef one(): return DEPTH\n")
    followed, alone = of_roots(Sources(root), ["benches.one:one"]), of_roots(Sources(root), [], alone=["benches.one:one"])
    assert followed.keys() - alone.keys() == {"implementation"}
    assert (followed["of"], alone["alone"]) == (["benches.one:one"], ["benches.one:one"])
