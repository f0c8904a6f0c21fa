"""The pages of the project: what they link to is there, and README stays one that is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.rows.results_file import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TARGET = re.compile(r"\]\((?!\w+:)([^)#\s]+)")  # of a link or an image that is no URL


def dead(page: Path) -> list[str]:
    return [target for target in TARGET.findall(page.read_text(encoding="utf-8")) if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert not dead(page)


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#there), [URL](https://example.org/), [gone](gone.md#there), ![picture](images/gone.png)")
    assert dead(page) == ["gone.md", "images/gone.png"]


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.encode()) <= 8 * 1024
