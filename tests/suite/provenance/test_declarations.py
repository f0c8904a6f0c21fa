"""What an implementation declares is apart from what it does: known failures, and what nothing but those uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.provenance.fingerprints import Sources

OURS = """
from impls.implementation import Implementation, known
from impls.limits import LACKING, SOME, among
from impls.limits import MORE as OTHERS

SEEN = "seen here"
ALSO = SOME + OTHERS
BOTH = 2
BOUND = 3
BOUND += 1


def some(names):
    return among(names, SEEN)


def checkpoint(function):
    return function(BOTH)


IMPLEMENTATION = Implementation(
    checkpoint=checkpoint, capabilities=LACKING, known=known(SEEN, some("a"), ALSO, BOUND) | {BOTH: 1}
)
"""
FILES = {
    "impls/__init__.py": "",
    "impls/implementation.py": "def Implementation(**given): return given\ndef known(*given): return given\n",
    "impls/limits.py": "LACKING = 1\nSOME = 2\nMORE = 3\ndef among(*given): return given\n",
    "impls/ours.py": OURS,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "impls").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def fingerprints(root: Path) -> tuple[str, str]:
    """Of what the implementation does, and of what it declares."""
    sources = Sources(root)
    return sources.undeclared.fingerprint(["impls.ours"]), sources.declaration("impls.ours")


@pytest.mark.parametrize(
    ("file", "old", "new", "does", "declares"),
    [
        ("ours", "{BOTH: 1}", "{BOTH: 2}", False, True),
        ("ours", '"seen here"', '"seen there"', False, True),
        ("ours", "return among(names, SEEN)", "return among(SEEN, names)", False, True),
        ("ours", "BOUND += 1", "BOUND += 2", False, True),
        ("limits", "SOME = 2", "SOME = 3", False, True),
        ("limits", "MORE = 3", "MORE = 4", False, True),
        ("ours", "BOTH = 2", "BOTH = 3", True, False),
        ("ours", "function(BOTH)", "function(1, BOTH)", True, False),
        ("limits", "LACKING = 1", "LACKING = 2", True, False),
        ("implementation", "Implementation(**given): return given", "Implementation(**given): return 1", True, False),
        ("limits", "LACKING = 1", "LACKING = 1  # a comment", False, False),
    ],
)
def test_a_change_is_of_what_is_done_or_of_what_is_declared(
    file: str, old: str, new: str, does: bool, declares: bool, root: Path
) -> None:
    before, path = fingerprints(root), root / "impls" / f"{file}.py"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    after = fingerprints(root)
    assert (before[0] != after[0], before[1] != after[1]) == (does, declares)


def test_sources_stay_as_they_are(root: Path) -> None:
    sources = Sources(root)
    before = sources.fingerprint(["impls.ours"])
    assert sources.undeclared.fingerprint(["impls.ours"]) != before == Sources(root).fingerprint(["impls.ours"])
    assert ("impls.limits", "SOME") in sources.closure(["impls.ours"])
    assert ("impls.limits", "SOME") not in sources.undeclared.closure(["impls.ours"])


def test_what_declares_nothing_has_nothing_declared(root: Path) -> None:
    (root / "impls" / "other.py").write_text("def checkpoint(): return 1\n")
    sources = Sources(root)
    assert sources.declaration("impls.other") == sources.hashed([])
    assert sources.undeclared.fingerprint(["impls.other"]) == sources.fingerprint(["impls.other"])
