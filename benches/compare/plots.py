"""Plots of a comparison: memory against time, overhead against saved tensors, peak against depth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.models.workloads import KINDS, device_type
from benches.papers.plots import INK, PANEL
from conformance.provenance.staleness import MEANING, older_names

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
# What each colour is where the reader prefers dark pages. Panels stay opaque: a page may be darker or lighter than preferred.
DARK = {
    PANEL: "#1b1e22",
    INK: "#e7e8ea",
    FRONT: "#8f958f",
    GRID: "#33383e",
    "#0b6bb5": "#6db3f2",
    "#c8480c": "#ff9466",
    "#1f7f3b": "#6fcf8b",
    "#a87900": "#e0b23e",
    "#8a3ea8": "#d08be8",
    "#c2185b": "#ff7fae",
    "#00838f": "#4fd0dc",
}
MARKER, STEP = 7, 4  # points: the size of a marker, and by how much one around it is larger
NEAR = 0.03  # as a share of what is drawn: markers this near overlap
Row = Mapping[str, Any]
Draw = Callable[[Any], None]
Styles = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plot:
    """A plot: the name of its file, a caption, what it shows in words, and what draws it on axes."""

    name: str
    caption: str
    description: str
    draw: Draw


def figures(content: Mapping[str, Any]) -> Iterator[Plot]:
    """The plots that the results allow for."""
    kind = device_type(content["device"])
    rows = [row for row in content["rows"] if row["status"] == "measured"]
    about, style = content["workloads"], styles(content["rows"])
    for name in about:
        timed = [row for row in rows if row["workload"] == name and row["times"] and row["allocated"]]
        if timed and not about[name]["x"]:
            size, regions = about[name]["size"], about[name]["blocks"]
            yield Plot(
                f"{kind}-{name}",
                f"Memory against time on {kind}: {name}, {KINDS[name].summary}; size {size}, {regions} regions",
                _points_in_words(timed),
                functools.partial(memory_against_time, name=name, rows=timed, style=style),
            )
    curves: tuple[tuple[str, Callable[..., None], str], ...] = (
        ("saved-", overhead, "Time of one region of sines over the ideal's, by the number of tensors that plain saves in it"),
        ("depth-", peak_against_depth, "Peak of GPT-2-like layers, each a region, by the number of layers"),
    )
    for prefix, draw, what in curves:
        found = [(about[row["workload"]]["x"], row) for row in rows if row["workload"].startswith(prefix)]
        found = [(x, row) for x, row in found if draw is not overhead or row["ideal_times"]]
        if found:
            caption = f"{what}; on {kind}, size {content['size']}"
            plot = functools.partial(draw, found=found, style=style)
            yield Plot(f"{kind}-{prefix[:-1]}", caption, _curves_in_words(what, found), plot)


def _points_in_words(rows: Sequence[Row]) -> str:
    plain = _plains_peak(rows)
    points: dict[tuple[float, float], list[str]] = {}
    for row in rows:
        points.setdefault((row["times"][1], row["allocated"]["peak"] / plain), []).append(row["contender"])
    best = "; ".join(
        f"{' and '.join(points[x, y])}, {x:.2f} times plain's time and {y:.2f} times its peak" for x, y in front([*points])
    )
    return f"Each of {len(rows)} contenders is a point: time of a step across, peak bytes up. On the Pareto front: {best}."


def _curves_in_words(what: str, found: Sequence[tuple[int, Row]]) -> str:
    names, places = (list(dict.fromkeys(one)) for one in ((row["contender"] for _, row in found), (x for x, _ in found)))
    return f"{what}, at {', '.join(map(str, places))}. A curve for each of {len(names)} contenders: {', '.join(names)}."


def _plains_peak(rows: Sequence[Row]) -> int:
    return next(row["allocated"]["peak"] for row in rows if row["contender"] == "plain")


def draw_all(content: Mapping[str, Any], directory: Path, suffix: str = ".svg") -> list[Path]:
    """Write every plot; the same bytes for the same results. A comparison of which anything is older than the code says so."""
    import matplotlib as mpl  # here, so that a comparison runs where there is no matplotlib

    mpl.use("agg")
    from matplotlib import pyplot as plt

    paths = []
    directory.mkdir(parents=True, exist_ok=True)
    for plot in figures(content):
        mpl.rcParams.update({"svg.hashsalt": plot.name, "svg.fonttype": "none"})  # text stays text
        mpl.rcParams.update({"axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK})
        figure, axes = plt.subplots(figsize=(8.6, 4.8), facecolor=PANEL, layout="constrained")
        axes.set_facecolor(PANEL)
        plot.draw(axes)
        if older := f"{MEANING}, all of it or some" if older_names(content) else "":
            figure.supxlabel(older, fontsize=9, color=INK)
        axes.tick_params(colors=INK)
        axes.grid(visible=True, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        legend = figure.legend(fontsize=8, facecolor=PANEL, edgecolor=GRID, labelcolor=INK, loc="outside right upper")
        handles: Any = legend.legend_handles
        for handle in handles:
            handle.set_markersize(min(MARKER, handle.get_markersize()))
        paths.append(directory / f"{plot.name}{suffix}")
        title = f"{plot.caption} ({older})" if older else plot.caption
        words = {"Date": None, "Title": title, "Description": plot.description}
        figure.savefig(paths[-1], facecolor=PANEL, metadata=words if suffix == ".svg" else None)
        plt.close(figure)
        if suffix == ".svg":
            paths[-1].write_text(_with_dark_colours(paths[-1].read_text(encoding="utf-8")), encoding="utf-8")
    return paths


def _with_dark_colours(svg: str) -> str:
    """The drawing with a rule for readers who prefer dark pages; as before wherever that is not understood."""
    rules = (f'[style*="{what}: {one}"]{{{what}: {DARK[one]} !important}}' for one in DARK for what in ("fill", "stroke"))
    dark = "\n".join(["", "@media (prefers-color-scheme: dark) {", *rules, "}"])
    return svg.replace("</style>", f"{dark}</style>", 1)


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


def covered(points: Sequence[tuple[float, float]]) -> list[int]:
    """For each point how many of those drawn after it would hide it, or be hidden, if all markers had one size."""
    across, up = ((max(values) - min(values)) or 1.0 for values in zip(*points, strict=True))
    near = [[abs(x - a) <= NEAR * across and abs(y - b) <= NEAR * up for a, b in points] for x, y in points]
    return [sum(one[place + 1 :]) for place, one in enumerate(near)]


def memory_against_time(axes: Any, name: str, rows: Sequence[Row], style: Styles) -> None:
    """The peak over the time of a step; both as ratios to plain's, with quartiles of time and the Pareto front.

    Of markers in one place the last is filled, and those before it are hollow around it, the first the largest.
    """
    plain = _plains_peak(rows)
    points = [(row["times"][1], row["allocated"]["peak"] / plain) for row in rows]
    best = front(points)
    axes.step(*zip(*best, strict=True), where="post", color=FRONT, linewidth=1.2, linestyle="--", label="Pareto front")
    for (x, y), row, above in zip(points, rows, covered(points), strict=True):
        low, _, high = row["times"]
        own = {**style[row["contender"]], "linestyle": "none", "markeredgecolor": PANEL}
        if above:
            around = {"markerfacecolor": "none", "markeredgecolor": own["color"], "markeredgewidth": 1.3, "zorder": 3}
            own |= {**around, "markersize": MARKER + STEP * above}
        axes.plot([low, high], [y, y], color=own["color"], linewidth=1)
        axes.plot([x], [y], **{"markersize": MARKER, "label": row["contender"], **own})
    _titled(axes, f"{name}: memory against time", "time of a step / plain's", "peak bytes / plain's")
    axes.set_ylim(bottom=0)


def overhead(axes: Any, found: Sequence[tuple[int, Row]], style: Styles) -> None:
    """The time over the ideal's by the number of saved tensors in a region."""
    _curves(axes, [(x, row["ideal_times"][1], row) for x, row in found], style)
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
