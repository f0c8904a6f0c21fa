"""The table of features and laws, as Markdown and as the generated section of its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.coverage.drawn_features import COMBINES, Drawn, Pair, drawn, holes, possible, total
from conformance.judging.law import PROFILES
from conformance.programs.generator.features import FEATURES
from conformance.reports.generated_section import Section

SECTION = Section("features", Path("docs/features.md"))
PROFILE, SEED = "quick", 0  # of what is published
HOLE = "**never**"


def measured(profile: str = PROFILE, seed: int = SEED) -> str:
    """The tables of what this profile draws with this seed."""
    return markdown(drawn(PROFILES[profile], seed), f"Profile `{profile}`, seed {seed}")


def write(root: Path) -> None:
    """Put the tables into their page."""
    SECTION.write(root, measured())


def check(root: Path) -> list[str]:
    """What to say if the section is not what is drawn now."""
    if SECTION.has(root, measured()):
        return []
    return [f"section {SECTION.name!r} of {root / SECTION.page} is stale: python -m reprise features --write"]


def markdown(found: Sequence[Drawn], about: str) -> str:
    """Tables of pairs, features and laws."""
    both = total(found)
    summary = (
        f"{about}: {both.programs} programs of {len(found)} laws are drawn by the generator. Laws whose programs are written "
        "by hand, or are samples of PyTorch's operator database, are not counted."
    )
    parts = [
        summary,
        "## Pairs",
        _pairs(found, both),
        "## Features",
        _table(("feature", "laws", "programs", "pairs that no law draws"), _features(found, both)),
        "## Laws",
        _table(("law", "programs", "features, each with how many of them have it", "pairs drawn"), map(_law, found)),
    ]
    return "\n\n".join(parts)


def _pairs(found: Iterable[Drawn], both: Drawn) -> str:
    """How many pairs are drawn by each law that is about all of them, with those that are not, and by all laws together."""
    laws = {one.law: one for one in found}
    lines = []
    for law, features in COMBINES.items():
        one = laws.get(law, Drawn(law, 0, Counter(), Counter()))
        missing = ", ".join(" + ".join(f"`{feature}`" for feature in pair) for pair in holes(one, features))
        lines.append([f"`{law}`", *_numbers(one, features), missing])
    lines.append(["all laws", *_numbers(both, FEATURES), "see below" if holes(both) else ""])
    return _table(("law", "pairs drawn", "in one program only", "never drawn", "which"), lines)


def _numbers(one: Drawn, features: Iterable[str]) -> list[str]:
    due = [*possible(features)]
    never = len(holes(one, features))
    return [f"{len(due) - never} of {len(due)}", str(sum(one.pairs[pair] == 1 for pair in due)), str(never)]


def _features(found: Sequence[Drawn], both: Drawn) -> Iterable[list[str]]:
    laws = Counter(feature for one in found for feature in one.features)
    missing = holes(both)
    for feature in sorted(FEATURES):
        count = str(both.features[feature] or HOLE)
        yield [f"`{feature}`", str(laws[feature] or HOLE), count, _others(feature, missing)]


def _others(feature: str, missing: Iterable[Pair]) -> str:
    """The features with which this one is never drawn; if these are most, those with which it is."""
    never = {one for pair in missing if feature in pair for one in pair} - {feature}
    able = {one for pair in possible() if feature in pair for one in pair} - {feature}
    if not never:
        return ""
    if never == able:
        return f"{len(never)}: all"
    if len(never) > len(able) / 2:
        return f"{len(never)}: all but {_listed(able - never)}"
    return f"{len(never)}: {_listed(never)}"


def _law(one: Drawn) -> list[str]:
    counts = ", ".join(f"`{feature}` {count}" for feature, count in sorted(one.features.items())) or HOLE
    return [f"`{one.law}`", str(one.programs), counts, str(len(one.pairs))]


def _listed(features: Iterable[str]) -> str:
    return ", ".join(f"`{one}`" for one in sorted(features))


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heading = [*heading]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, ["---"] * len(heading), *rows))
