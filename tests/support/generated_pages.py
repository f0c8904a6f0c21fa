"""Pages of a project that have nothing but places for generated sections."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conformance.page.docs_lists import PAGES
from conformance.ranked_runs import catalogue
from conformance.reports.generated_section import Section
from conformance.reports.report import CHOICE, COUNTS, ELSEWHERE, LAWS, MATRIX, RANKS, SCRIPT
from tests.support.synthetic_results import LISTS


def place(section: Section) -> str:
    """A page with one section, which is old."""
    return f"before\n{section.begin}\nold\n{section.end}\nafter\n"


def write_places(
    root: Path, sections: Iterable[Section] = (COUNTS, MATRIX, ELSEWHERE, CHOICE, LAWS, RANKS, catalogue.SECTION)
) -> None:
    """Write a page for each section, and those with the lists that the page of results shows."""
    (root / "docs").mkdir(parents=True, exist_ok=True)
    pages: dict[Path, str] = {}
    for section in sections:
        pages[section.page] = pages.get(section.page, "") + place(section)
    for page, text in pages.items():
        (root / page).write_text(text, encoding="utf-8")
    write_lists(root)


def write_lists(root: Path, text: str = LISTS) -> None:
    """Write the two pages of lists, the first with all of this text."""
    (root / "docs").mkdir(parents=True, exist_ok=True)
    first, second = PAGES.values()
    assert second == SCRIPT.page
    (root / first).write_text(text, encoding="utf-8")
    (root / second).write_text("", encoding="utf-8")
