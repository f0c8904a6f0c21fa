"""Plots of a comparison: memory against time, overhead against saved tensors, peak against depth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.papers.plots import INK, PANEL
from benches.workloads import device_type

COLOURS = {
    "plain": "#1a1a1a",
    "ours": "#0b6bb5",
    "torch": "#c8480c",
    "peer": "#1f7f3b",
    "host": "#a87900",
    "compiler": "#8a3ea8",
    "plan": "#c2185b",
    "yours": "#00838f",
}
MARKERS = "o", "s", "^", "D", "v", "P", "X", "*"
LINES = "-", "--", ":", "-."
SAME = 0.005  # how far apart curves may be, relatively, that are drawn as one
FRONT, GRID = "#8c8c86", "#d9d9d4"
Row = Mapping[str, Any]
Draw = Callable[[Any], None]
Styles = dict[str, dict[str, Any]]


def figures(content: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """Names of the plots that the results allow for, and what draws each on axes."""
    kind = device_type(content["device"])
    rows = [row for row in content["rows"] if row["status"] == "measured"]
    about, style = content["workloads"], styles(content["rows"])
    for name in about:
        timed = [row for row in rows if row["workload"] == name and row["times"] and row["allocated"]]
        if timed and not about[name]["x"]:
            yield f"{kind}-{name}", functools.partial(memory_against_time, name=name, rows=timed, style=style)
    for prefix, draw in (("saved-", overhead), ("depth-", peak_against_depth)):
        found = [(about[row["workload"]]["x"], row) for row in rows if row["workload"].startswith(prefix)]
        if found:
            yield f"{kind}-{prefix[:-1]}", functools.partial(draw, found=found, style=style)


def draw_all(content: Mapping[str, Any], directory: Path, suffix: str = ".svg") -> list[Path]:
    """Write every plot; the same bytes for the same results."""
    import matplotlib as mpl  # here, so that a comparison runs where there is no matplotlib

    mpl.use("agg")
    from matplotlib import pyplot as plt

    paths = []
    directory.mkdir(parents=True, exist_ok=True)
    for name, draw in figures(content):
        mpl.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none"})  # text stays text
        figure, axes = plt.subplots(figsize=(8.6, 4.8), facecolor=PANEL, layout="constrained")
        axes.set_facecolor(PANEL)
        draw(axes)
        axes.tick_params(colors=INK)
        axes.grid(visible=True, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        figure.legend(fontsize=8, facecolor=PANEL, labelcolor=INK, loc="outside right upper")
        paths.append(directory / f"{name}{suffix}")
        figure.savefig(paths[-1], facecolor=PANEL, metadata={"Date": None} if suffix == ".svg" else None)
        plt.close(figure)
    return paths


def _titled(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, color=INK, fontsize=11, loc="left")
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)


def styles(rows: Sequence[Row]) -> Styles:
    """A colour by family, a marker and a kind of line by place in the family, for each contender."""
    found: Styles = {}
    seen: dict[str, int] = {}
    for row in rows:
        if row["contender"] not in found:
            place = seen[row["family"]] = seen.get(row["family"], -1) + 1
            marks = {"marker": MARKERS[place % len(MARKERS)], "linestyle": LINES[place % len(LINES)]}
            found[row["contender"]] = {"color": COLOURS[row["family"]], **marks}
    return found


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, by the first."""
    best: list[tuple[float, float]] = []
    for point in sorted(points):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def memory_against_time(axes: Any, name: str, rows: Sequence[Row], style: Styles) -> None:
    """The peak over the time of a step; both as ratios to plain's, with quartiles of time and the Pareto front."""
    plain = next(row for row in rows if row["contender"] == "plain")["allocated"]["peak"]
    points = [(row["times"][1], row["allocated"]["peak"] / plain) for row in rows]
    best = front(points)
    axes.step(*zip(*best, strict=True), where="post", color=FRONT, linewidth=1.2, linestyle="--", label="Pareto front")
    for (x, y), row in zip(points, rows, strict=True):
        low, _, high = row["times"]
        own = {**style[row["contender"]], "linestyle": "none"}
        axes.plot([low, high], [y, y], color=own["color"], linewidth=1)
        axes.plot([x], [y], markersize=7, markeredgecolor=PANEL, label=row["contender"], **own)
    _titled(axes, f"{name}: memory against time", "time of a step / plain's", "peak bytes / plain's")
    axes.set_ylim(bottom=0)


def overhead(axes: Any, found: Sequence[tuple[int, Row]], style: Styles) -> None:
    """The time over the ideal's by the number of saved tensors in a region."""
    _curves(axes, [(x, row["ideal_times"][1], row) for x, row in found if row["ideal_times"]], style)
    _titled(
        axes, "One region of sines: what it adds to the ideal", "saved tensors in the region", "time of a step / the ideal's"
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.axhline(1, color=FRONT, linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0)


def peak_against_depth(axes: Any, found: Sequence[tuple[int, Row]], style: Styles) -> None:
    """The peak by the number of layers."""
    points = [(x, (row["allocated"] or row["ledger"])["peak"] / 2**20, row) for x, row in found]
    _curves(axes, points, style)
    _titled(axes, "GPT-2-like layers: peak against depth", "layers, each a region", "peak, MiB")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")


def _curves(axes: Any, points: Sequence[tuple[int, float, Row]], style: Styles) -> None:
    """A curve for each contender, or for several whose values are the same."""
    drawn: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name in dict.fromkeys(row["contender"] for _, _, row in points):
        own = tuple((x, y) for x, y, row in points if row["contender"] == name)
        drawn.setdefault(next((one for one in drawn if _same(one, own)), own), []).append(name)
    for own, names in drawn.items():
        axes.plot(*zip(*own, strict=True), label=",\n".join(names), linewidth=1.3, markersize=5, **style[names[0]])


def _same(one: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> bool:
    near = (x == at and abs(y - value) <= SAME * abs(y) for (x, y), (at, value) in zip(one, other, strict=False))
    return len(one) == len(other) and all(near)
