"""What ranks measured beside what the model predicts, and the predictions for many devices: on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benches.compare.report import size
from benches.published import PublishedSection, measured_on, older_mark, older_note
from benches.ranks.predictions import ASSUMPTIONS
from conformance.reports.generated_section import Section

Stored = Mapping[str, Any]
RANKS = 2, 4
HEADINGS = "parallelism", "checkpoint", "time / plain", "peak", "predicted", "sent", "predicted", "gradients"


def faults(content: Stored) -> Iterator[str]:
    """What is not as it must be: gradients that are not plain's, collectives or a peak that are not those predicted."""
    for row in content["rows"]:
        name = f"{row['parallelism']}, {row['implementation']}"
        if row["gradients"] != "equal":
            yield f"{name}: gradients are not plain's to the last bit, or nothing but zeros"
        if row["collectives"] != row["predicted_collectives"]:
            yield f"{name}: collectives are {row['collectives']}, predicted {row['predicted_collectives']}"
        for rank, (peak, predicted) in enumerate(zip(row["peak"], row["predicted_peak"], strict=True)):
            if abs(peak - predicted) > content["bound"]:
                yield f"{name}: rank {rank} takes {peak:,} bytes, predicted {predicted:,} to within {content['bound']:,}"


def measured_table(content: Stored) -> list[list[str]]:
    """Headings and cells; of several ranks the most."""
    lines = [[*HEADINGS]]
    for row in content["rows"]:
        low, middle, high = row["times"]
        time = "1" if row["implementation"] == "plain" else f"{middle:.2f} ({low:.2f}–{high:.2f})"
        bytes_ = (f"{max(row[name]):,}" for name in ("peak", "predicted_peak", "sent", "predicted_sent"))
        lines.append(
            [row["parallelism"], row["implementation"] + older_mark(content, table="rows"), time, *bytes_, row["gradients"]]
        )
    return lines


def predicted_table(content: Stored) -> list[list[str]]:
    """Peaks by technique; what is sent once where it is the same with each."""
    techniques = [*content["predictions"][0]["peaks"]]
    lines = [
        ["model", "parallelism", "devices", "sequences", *(f"peak, {one} (computed)" for one in techniques), "sent (computed)"]
    ]
    for row in content["predictions"]:
        sent = [size(row["sent"][one]) for one in techniques]
        told = sent[0] if len({*sent}) == 1 else " / ".join(sent)
        peaks = [size(row["peaks"][one]) for one in techniques]
        lines.append([row["model"], row["parallelism"], f"{row['devices']:,}", f"{row['sequences']:,}", *peaks, told])
    return lines


def notes(content: Stored) -> list[str]:
    """What was measured, how, and on what."""
    shape = content["shape"]
    tokens = f"{shape['batch']} × {shape['length']} tokens a microbatch, {content['microbatches']} of these under 1F1B"
    measured = (
        f"{content['ranks']} ranks on this machine, gloo, one thread each; a decoder of {shape['layers']} blocks of width "
        f"{shape['width']}, {tokens}, float32, Adam. Times are medians and quartiles of {content['rounds']} rounds, from a "
        "barrier to a barrier, beside plain's of the same round. Peaks are bytes of a forward and backward by torch's "
        "allocator: weights, optimizer and gradients are included, copies inside of collectives are not. Sent are bytes that a "
        "rank sends by ring algorithms, from the collectives that it issues. Both are the most of any rank. Predictions are "
        f"from shapes alone: collectives exact, peaks to within {content['bound']:,} bytes, the size of what goes from block "
        "to block and a state of random numbers."
    )
    return [measured, measured_on(content) + older_note(content)]


def markdown(content: Stored) -> str:
    """The section of docs/distributed.md; predictions are beside the larger world."""
    parts = [_lines(measured_table(content)), *notes(content)]
    if content["ranks"] == max(RANKS):
        parts += [_lines(predicted_table(content)), ASSUMPTIONS]
    return "\n\n".join(parts)


def _lines(table: Sequence[Sequence[str]]) -> str:
    first, *others = table
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, ["---"] * len(first), *others))


def show(content: Stored, console: Console) -> None:
    """Print both tables with their notes."""
    _print(measured_table(content), console)
    for note in notes(content):
        console.print(note, markup=False, highlight=False)
    _print(predicted_table(content), console)
    console.print(ASSUMPTIONS, markup=False, highlight=False)


def _print(lines: Sequence[Sequence[str]], console: Console) -> None:
    first, *others = lines
    table = Table(*first, box=box.SIMPLE_HEAD, pad_edge=False)
    for line in others:
        table.add_row(*line)
    console.print(table)


def section(ranks: int) -> PublishedSection:
    """The section of the page about a world of so many ranks."""
    command = f"compare --ranks {ranks}"
    return PublishedSection(
        section=Section(f"ranks-{ranks}", Path("docs") / "distributed.md"),
        results=Path("results") / f"ranks-{ranks}.json",
        about=f"the table of {ranks} ranks",
        nothing=f"No measurement is published yet: `python -m reprise {command} --write` makes one.",
        markdown=markdown,
        bench=command,
    )


SECTIONS = tuple(map(section, RANKS))
