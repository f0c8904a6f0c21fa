"""Lists of README.md that are shown elsewhere too, so that they are written once."""

from __future__ import annotations

import re

RULES, NOT_COVERED = "The rules of nesting", "What is not covered"
ITEM = re.compile(r"(?:- |(\d+)\. )(.+)")


def items(readme: str, heading: str) -> list[str]:
    """The list under ``## heading``, an item a line; ValueError where it is missing or not numbered from 1 on."""
    _, found, rest = f"\n{readme}".partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"README.md has no heading '## {heading}', whose list is shown on the page")
    listed = [match for line in rest.partition("\n## ")[0].splitlines() if (match := ITEM.fullmatch(line))]
    if not listed:
        raise ValueError(f"README.md has no list under '## {heading}', an item a line")
    numbers = [int(one[1]) for one in listed if one[1]]
    if numbers and numbers != list(range(1, len(listed) + 1)):
        raise ValueError(f"README.md, '## {heading}': the items are numbered {numbers}; 1 to {len(listed)} is due")
    return [one[2] for one in listed]


def spans(text: str) -> list[tuple[bool, str]]:
    """The parts of an item, each with whether it is code."""
    return [(place % 2 == 1, part) for place, part in enumerate(text.split("`")) if part]
