"""What laws mean to readers: every law says it, in values that exist, and no fingerprint depends on it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from conformance.judging.law import all_laws
from conformance.provenance.fingerprints import LAWS, PACKAGES, SEPARATE, Sources
from conformance.rows import for_readers
from conformance.rows.for_readers import CONSEQUENCES, TIERS, ForReaders
from conformance.rows.results_file import ROOT


def test_every_law_says_what_it_means_to_readers() -> None:
    laws = [law.name for law in all_laws().values() if law.check.__module__.startswith(f"{LAWS}.")]
    assert len(laws) > 400
    assert [name for name in laws if for_readers.of_law(name) is None] == []


def test_every_tier_and_consequence_is_that_of_some_law() -> None:
    told = [one for name in all_laws() if (one := for_readers.of_law(name))]
    assert {one.tier for one in told} == TIERS.keys()
    assert {one.consequence for one in told} == CONSEQUENCES.keys()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("daily", "wrong state", "AMP"), "tier is 'daily'; accepted are everyday, advanced, adversarial"),
        (("everyday", "bad", "AMP"), "consequence is 'bad'; accepted are wrong gradient, wrong state, "),
        (("everyday", "wrong state", ""), "words are ''; they must be different words, between commas"),
        (("everyday", "wrong state", "AMP, AMP"), "words are 'AMP, AMP'; they must be different words"),
    ],
)
def test_what_does_not_exist_is_refused_at_import(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        for_readers.for_readers(*given)


def test_words_are_cut_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_readers, "_BY_LAW", {})

    @for_readers.for_readers("everyday", "wrong gradient", "AMP, mixed precision")
    def test_apples_fall() -> None: ...

    assert for_readers.of_law("apples_fall") == ForReaders("everyday", "wrong gradient", ("AMP", "mixed precision"))
    assert for_readers.of_law("pears_fall") is None


def test_no_fingerprint_of_a_law_depends_on_what_it_means_to_readers(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc"))
    changed = 0
    for path in (tmp_path / "conformance" / "laws").glob("test_*.py"):
        without, count = re.subn(r"(?m)^@for_readers\((?:\n.*?\n\)|.*\))\n", "", path.read_text(encoding="utf-8"))
        path.write_text(without.replace("from conformance.rows.for_readers import for_readers\n", ""), encoding="utf-8")
        changed += count
    with_it, without_it = Sources(ROOT), Sources(tmp_path)
    roots = [f"{law.check.__module__}:test_{law.name}" for law in all_laws().values() if law.check.__module__.startswith(LAWS)]
    assert changed == len(roots)
    assert [root for root in roots if with_it.fingerprint([root]) != without_it.fingerprint([root])] == []


def test_the_decorator_is_where_fingerprints_look_for_it() -> None:
    decorator = for_readers.for_readers
    assert f"{decorator.__module__}:{decorator.__qualname__}" in SEPARATE
