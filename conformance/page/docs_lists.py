"""Lists of the pages in ``docs`` that the page of results shows too, so that they are written once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

RULES, NOT_COVERED = "The rules of nesting", "What is not covered"
PAGES: Mapping[str, Path] = {  # where each list is, by the heading above it
    RULES: Path("docs") / "nesting-rules.md",
    NOT_COVERED: Path("docs") / "verdicts-and-limits.md",
}
ITEM = re.compile(r"(?:- |(\d+)\. )(.+)")


def text(root: Path) -> str:
    """The pages that have these lists, one after the other. Raises OSError for a page that is not there."""
    return "\n".join((root / page).read_text(encoding="utf-8") for page in PAGES.values())


def items(pages: str, heading: str) -> list[str]:
    """The list under ``## heading``, an item a line; ValueError if it is missing or not numbered from 1 on."""
    _, found, rest = f"\n{pages}".partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"{PAGES[heading]} has no heading '## {heading}', whose list is shown on the page")
    listed = [match for line in rest.partition("\n## ")[0].splitlines() if (match := ITEM.fullmatch(line))]
    if not listed:
        raise ValueError(f"{PAGES[heading]} has no list under '## {heading}', an item a line")
    numbers = [int(one[1]) for one in listed if one[1]]
    if numbers and numbers != list(range(1, len(listed) + 1)):
        raise ValueError(f"{PAGES[heading]}, '## {heading}': the items are numbered {numbers}; they must be 1 to {len(listed)}")
    return [one[2] for one in listed]


def spans(item: str) -> list[tuple[bool, str]]:
    """The parts of an item, each with whether it is code."""
    return [(place % 2 == 1, part) for place, part in enumerate(item.split("`")) if part]
