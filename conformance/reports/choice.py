"""The answers to "Which one should I use?" as Markdown, made from the same rows as those of the page of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.provenance.staleness import MARK, MEANING, count, marked
from conformance.reports import ranking
from conformance.reports.answers import SILENT, Answer, Broken, answers
from conformance.reports.editions import Edition, distinct
from conformance.reports.matrix import SYMBOLS
from conformance.reports.nearest_declaration import CONTROL
from conformance.rows.results_file import Row
from conformance.rows.torch_releases import release

WRONG, LOUD, RIGHT = SYMBOLS["diverges"], SYMBOLS["refuses"], SYMBOLS["agrees"]
LEGEND = (
    f"{RIGHT} right; {LOUD} refuses or raises, so you notice; {WRONG} silently wrong. Everyday laws decide if there are any; a "
    f"number after {RIGHT} counts advanced laws about the topic under which the implementation is silently wrong. The last "
    "column counts everyday and advanced laws of any topic under which it is silently wrong. Laws about regions that are "
    "compiled count there alone: see [Under torch.compile](under-torch-compile.md)."
)


@dataclass(frozen=True)
class Training:
    """What somebody trains, the search words of the topics that decide which implementation is right, and a note."""

    title: str
    words: tuple[str, ...]
    note: str = ""


TRAININGS = (
    Training("A language model with dropout, in one precision", ("dropout",)),
    Training("A language model with dropout and mixed precision", ("dropout", "mixed precision")),
    Training("The same, fine-tuned with LoRA or on frozen embeddings", ("dropout", "mixed precision", "LoRA")),
    Training(
        "A convolutional network with BatchNorm under DistributedDataParallel",
        ("DDP",),
        "Every checkpoint is wrong about BatchNorm inside a region: [do this](#batchnorm), whichever you choose. The rest is "
        "about DistributedDataParallel, as far as it is judged.",
    ),
    Training("A network with a gradient penalty", ("double backward",)),
)


def markdown(edition: Edition) -> str:
    """The answers for the checkpoints of an edition: at a glance, for some trainings, and by topic with the laws behind."""
    found = {one.topic.word: one for one in answers(edition)}
    if not found:
        return "No law about these topics was judged."
    rows = [one.row for one in edition.entries if one.kind == "checkpoint" and one.row["impl"] != CONTROL]
    rows = [row for row in rows if ranking.tier(row) in ("everyday", "advanced")]
    wrong = Counter(row["impl"] for row in rows if ranking.effect(row) in SILENT)
    older = marked(f" {MEANING}.") if count(rows) else ""
    trainings = [one for one in TRAININGS if {*one.words} <= {*found}]
    parts = [
        f"Counted from the verdicts on checkpoints with torch {release(edition.torch)}, device `{edition.device}`.{older}",
        "## At a glance",
        _overview(found, rows, wrong),
        LEGEND,
        "## For some trainings",
        *(_training(one, [found[word] for word in one.words], wrong) for one in trainings),
        *(part for one in found.values() for part in _topic(one)),
    ]
    return "\n\n".join(parts)


def _overview(found: Mapping[str, Answer], rows: Sequence[Row], wrong: Mapping[str, int]) -> str:
    names, laws = distinct(row["impl"] for row in rows), len({row["law"] for row in rows})
    titles = [one.topic.title for one in found.values()]
    lines = [["implementation", *titles, f"{WRONG} of {laws}"], ["---"] * (len(titles) + 2)]
    for name in sorted(names, key=lambda name: wrong[name]):
        mark = marked(f" {MARK}") if count(row for row in rows if row["impl"] == name) else ""
        lines.append([f"`{name}`{mark}", *(_cell(name, one) for one in found.values()), str(wrong[name])])
    return _table(lines)


def _cell(name: str, answer: Answer) -> str:
    """What an implementation does under the laws about a topic, in a few words."""
    if its := dict(answer.silent).get(name):
        return f"{WRONG} {ranking.effect(min((entry.row for entry in its), key=ranking.urgency))}"
    if name in dict(answer.loud):
        return LOUD
    if name not in answer.names:
        return "not judged"
    later = dict(answer.beyond.silent).get(name, ()) if answer.beyond else ()
    return f"{RIGHT} {WRONG}{len(later)}" if later else RIGHT


def _training(one: Training, topics: Sequence[Answer], wrong: Mapping[str, int]) -> str:
    """Who is right under the laws of all its topics, fewest silent faults first, and who is not, and why."""
    silent = distinct(name for topic in topics for name, _ in topic.silent)
    names = distinct(name for topic in topics for name in topic.names)
    right = sorted((name for name in names if all(name in topic.keep for topic in topics)), key=lambda name: wrong[name])
    others = [name for name in names if name not in {*right, *silent}]
    lines = [f"**{one.title}.** {one.note}".rstrip(), "", f"- right, fewest silent faults first: {_listed(right)}"]
    lines += [f"- refuses or raises, or leaks, or repeats more than it must: {_listed(others)}"] if others else []
    lines += [f"- silently wrong: {line}" for line in _reasons(topics)]
    return "\n".join(lines)


def _reasons(topics: Sequence[Answer]) -> Iterator[str]:
    """For each law, the implementations that break it silently and broke no law before it."""
    told: set[str] = set()
    for topic in topics:
        for law, statement in topic.laws:
            broken = [name for name in _breaking(topic.silent, law) if name not in told]
            told |= {*broken}
            if broken:
                yield f"{_listed(broken)}, by `{law}`: {statement}"


def _topic(answer: Answer) -> list[str]:
    """A heading, the topic's note, and a table of the laws."""
    lines = [["law", "tier", "silently wrong", "refuses or raises"], ["---"] * 4]
    for one in filter(None, (answer, answer.beyond)):
        for law, statement in one.laws:
            about = f"`{law}`: {statement}".replace("|", "\\|")
            broken = [_briefly(_breaking(its, law), answer.names) for its in (one.silent, one.loud)]
            lines.append([about, ranking.tier({"law": law}), *broken])
    return [f"## {answer.topic.title}", *filter(None, [answer.topic.note]), _table(lines)]


def _breaking(broken: Broken, law: str) -> list[str]:
    return [name for name, its in broken if any(entry.row["law"] == law for entry in its)]


def _briefly(names: Sequence[str], of: Sequence[str]) -> str:
    """The names, or "all but" the others if these are fewer."""
    others = [name for name in of if name not in names]
    if not others:
        return "all"
    return f"all but {_listed(others)}" if len(others) < len(names) else _listed(names)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
