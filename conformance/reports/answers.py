"""What the page says before the matrix: what each implementation keeps, and which one to use for what, both made from rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conformance.reports import ranking
from conformance.reports.editions import Edition, Entry, Table, distinct
from conformance.reports.nearest_declaration import CONTROL
from conformance.rows.for_readers import TIERS

# The effects that a user does not notice, those that a user does notice, and the others, which make no result wrong.
SILENT = ("wrong gradient", "wrong state", ranking.UNKNOWN[0])
LOUD = (ranking.REFUSED, ranking.CRASH, ranking.HANG)
COSTLY = tuple(name for name in ranking.EFFECTS if name not in (*SILENT, *LOUD))
Broken = tuple[tuple[str, tuple[Entry, ...]], ...]


@dataclass(frozen=True)
class Topic:
    """What somebody looks for, the search word of the laws about it, and a note on what no row says."""

    title: str
    word: str
    note: str = ""


TOPICS = (
    Topic("Dropout", "dropout"),
    Topic("Mixed precision", "mixed precision"),
    Topic(
        "DistributedDataParallel",
        "DDP",
        "The law below runs in one process and is about hooks that DistributedDataParallel relies on. The laws of family "
        "distributed run the wrapper itself on several ranks, with the checkpoints that are built in. There legacy, reentrant "
        "and torch-reentrant are wrong or raise if regions share a parameter (“Expected to mark a variable ready only once”), "
        "if several forwards come before a backward, or with find_unused_parameters=True; nested and torch-nonreentrant keep "
        "all of these laws. Under FSDP2 the same three lose gradients without an error if a forward calls a module twice, "
        "with a region around each call. Statistics that a region averages over ranks are updated twice by every checkpoint.",
    ),
    Topic(
        "BatchNorm",
        "BatchNorm",
        "Gradients of BatchNorm itself are right (`modules_that_are_layers` is about other layers, too), but each "
        "recomputation updates the running statistics again, so the model gives other results in eval mode. Leave BatchNorm "
        "outside of regions or in eval mode, or give it the momentum 1 - sqrt(1 - momentum), with which two updates have the "
        "effect of one.",
    ),
    Topic(
        "LoRA and frozen inputs",
        "LoRA",
        "If no input of a region requires grad, as in the first region of a model whose embedding is frozen, a reentrant "
        "checkpoint gives the parameters inside no gradient.",
    ),
    Topic("Double backward, gradient penalties", "double backward"),
)


@dataclass(frozen=True)
class Answer:
    """Under the laws about a topic: who keeps all, who is silently wrong under some, and who else is loud or only costly.

    If there are everyday laws about it, these decide, and ``beyond`` has the answer under the advanced ones.
    """

    topic: Topic
    laws: tuple[tuple[str, str], ...]
    keep: tuple[str, ...]
    costly: Broken
    loud: Broken
    silent: Broken
    beyond: Answer | None = None

    @property
    def names(self) -> list[str]:
        """Every implementation that was judged by these laws."""
        return [*self.keep, *(name for broken in (self.costly, self.loud, self.silent) for name, _ in broken)]


def answers(edition: Edition) -> list[Answer]:
    """The answers for checkpoints, for each topic about which there are rows.

    Adversarial laws are left out, and those about ``torch.compile``, which users without it do not meet.
    """
    entries = [one for one in edition.entries if one.kind == "checkpoint" and one.row["impl"] != CONTROL]
    return [_by_tier(topic, its) for topic in TOPICS if (its := [one for one in entries if _is_about(one, topic)])]


def _is_about(entry: Entry, topic: Topic) -> bool:
    found = ranking.guide(entry.row["law"])
    asked = found is not None and topic.word in found.words and found.tier != "adversarial"
    return asked and entry.row.get("family") != "compiled"


def _by_tier(topic: Topic, entries: Sequence[Entry]) -> Answer:
    everyday = [one for one in entries if ranking.tier(one.row) == "everyday"]
    others = [one for one in entries if one not in everyday]
    if not everyday:
        return _answer(topic, others)
    return replace(_answer(topic, everyday), beyond=_answer(topic, others) if others else None)


def _answer(topic: Topic, entries: Sequence[Entry]) -> Answer:
    laws = tuple(dict.fromkeys((one.row["law"], one.row.get("statement", "")) for one in entries))
    names = distinct(one.row["impl"] for one in entries)
    costly, loud, silent = (_broken(entries, names, effects) for effects in (COSTLY, LOUD, SILENT))
    wrong = {name for name, _ in silent}
    loud = tuple((name, its) for name, its in loud if name not in wrong)
    wrong |= {name for name, _ in loud}
    costly = tuple((name, its) for name, its in costly if name not in wrong)
    wrong |= {name for name, _ in costly}
    return Answer(topic, laws, tuple(name for name in names if name not in wrong), costly, loud, silent)


def _broken(entries: Sequence[Entry], names: Sequence[str], effects: Sequence[str]) -> Broken:
    """The verdicts with one of these effects, by implementation; implementations without any are left out."""
    found = [one for one in entries if ranking.effect(one.row) in effects]
    by_name = ((name, tuple(one for one in found if one.row["impl"] == name)) for name in names)
    return tuple((name, its) for name, its in by_name if its)


@dataclass(frozen=True)
class Keeps:
    """How many laws of each tier an implementation keeps, how many there are, and how many give wrong gradients."""

    name: str
    note: str
    tiers: tuple[tuple[int, int], ...]
    wrong: tuple[int, ...]


def keeps(table: Table) -> list[Keeps]:
    """What each column of a table keeps, by tier."""
    found = []
    for column in table.columns:
        rows = [one.row for one in column.entries]
        laws, broken = Counter(map(ranking.tier, rows)), [row for row in rows if ranking.effect(row)]
        kept = laws - Counter(map(ranking.tier, broken))
        wrong = Counter(ranking.tier(row) for row in broken if ranking.effect(row) == "wrong gradient")
        tiers = tuple((kept[tier], laws[tier]) for tier in TIERS)
        found.append(Keeps(column.name, column.note, tiers, tuple(wrong[tier] for tier in TIERS)))
    return found
