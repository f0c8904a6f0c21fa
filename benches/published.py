"""What README.md shows of results: a text between markers, and on what it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def between(readme: str, begin: str, end: str, text: str) -> str:
    """The README with this text between two markers; ValueError when it does not have one pair of markers."""
    before, first, rest = readme.partition(begin)
    _, second, after = rest.partition(end)
    if not (first and second) or begin in after or end in after:
        raise ValueError(f"README.md must have {begin} and {end} once each, in this order")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def measured_on(content: Mapping[str, Any]) -> str:
    """Machine, versions, commit of the suite and date, in one line."""
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    commit = content["suite"]["commit"][:10] + (" with uncommitted changes" if content["suite"]["dirty"] else "")
    return f"{machine['processor']}, {machine['cpus']} CPUs; {versions}; suite at {commit}, {content['date'][:10]}."
