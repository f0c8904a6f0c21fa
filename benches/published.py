"""What README.md shows of results: a text between markers, and on what it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.provenance.staleness import MARK, is_older, marked, note, older_names


def between(readme: str, begin: str, end: str, text: str) -> str:
    """The README with this text between two markers; ValueError when it does not have one pair of markers."""
    before, first, rest = readme.partition(begin)
    _, second, after = rest.partition(end)
    if not (first and second) or begin in after or end in after:
        raise ValueError(f"README.md must have {begin} and {end} once each, in this order")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def measured_on(content: Mapping[str, Any]) -> str:
    """Machine, versions, commit of the suite and date, in one line; and what is wrong with the commit, as a mark."""
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    commit = content["suite"]["commit"][:10] + (" with uncommitted changes" if content["suite"]["dirty"] else "")
    gone = marked(f" {MARK} {told}.") if (told := note(content)) else ""
    return f"{machine['processor']}, {machine['cpus']} CPUs; {versions}; suite at {commit}, {content['date'][:10]}.{gone}"


def older_mark(content: Mapping[str, Any], **names: str) -> str:
    """The mark at what has these names in a table, if it is older than the code; else ""."""
    return marked(f" {MARK}") if is_older(content, **names) else ""


def older_note(content: Mapping[str, Any]) -> str:
    """What is older than the code in a table, as a mark; "" if nothing is."""
    return marked(f" {told}.") if (told := older_names(content)) else ""
