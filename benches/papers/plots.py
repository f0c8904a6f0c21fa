"""Figures as SVG, the same bytes for the same data, legible on light and on dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches.papers.paper import Curve, Figure

GIVEN_INK, INK, PANEL = "#444444", "#1a1a1a", "#fafaf7"  # an opaque panel of its own, whatever the page looks like
COLOURS = ("#0b6bb5", "#c8480c", "#1f7f3b", "#8a3ea8", "#a87900", "#c2185b")
MARKERS = ("o", "s", "^", "D", "v", "P")
GIVEN = ("stated", "formula")
LINES = {"computed": ":", "simulated": "-.", "measured": "-"}


def draw(figure: Figure, path: Path) -> None:
    """Write ``figure`` to ``path``, whose suffix says the format (.svg, .png).

    The legend says of each curve what it is. What a work states and formulas are grey and dashed; only what was measured has
    a solid line, or a filled bar.
    """
    import matplotlib as mpl  # here, so that claims can be measured where there is no matplotlib

    mpl.use("agg")
    from matplotlib import pyplot as plt

    # Text stays text: small files whose changes can be read.
    mpl.rcParams.update({"svg.hashsalt": figure.name, "svg.fonttype": "none"})
    fig, axes = plt.subplots(figsize=(7.2, 4.4), facecolor=PANEL, layout="constrained")
    try:
        axes.set_facecolor(PANEL)
        (_bars if figure.categories else _curves)(axes, figure)
        axes.set_title(figure.title, color=INK, fontsize=11)
        axes.set_xlabel(figure.x_label, color=INK)
        axes.set_ylabel(figure.y_label, color=INK)
        axes.tick_params(colors=INK)
        axes.grid(visible=True, axis="y" if figure.categories else "both", color="#d9d9d4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(fontsize=8, facecolor=PANEL, labelcolor=INK)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, facecolor=PANEL, metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        plt.close(fig)


def _numbered(figure: Figure) -> list[tuple[Curve, int]]:
    """Each curve with its number among those that are given, or among the others."""
    given = [curve.kind in GIVEN for curve in figure.curves]
    return [(curve, given[:place].count(given[place])) for place, curve in enumerate(figure.curves)]


def _style(curve: Curve, number: int) -> dict[str, Any]:
    style: dict[str, Any] = {"marker": MARKERS[number % 6]}
    if curve.kind in GIVEN:
        return {**style, "color": GIVEN_INK, "linestyle": "--", "markerfacecolor": "none", "markersize": 8}
    style |= {"color": COLOURS[number % 6], "linestyle": LINES[curve.kind], "markersize": 4.5}
    return style if curve.kind == "measured" else {**style, "markerfacecolor": "none", "markersize": 6}


def _curves(axes: Any, figure: Figure) -> None:
    for curve, number in _numbered(figure):
        style = _style(curve, number)
        if not curve.joined:
            style["linestyle"] = "none"
        elif len(curve.x) > 40:
            style["marker"] = ""
        axes.plot(curve.x, curve.y, label=_label(curve), linewidth=1.4, **style)
    if "x" in figure.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if "y" in figure.log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Any, figure: Figure) -> None:
    width = 0.8 / len(figure.curves)
    for place, (curve, number) in enumerate(_numbered(figure)):
        style: dict[str, Any] = {"color": COLOURS[number % 6]}
        if curve.kind != "measured":
            style = {"color": "none", "edgecolor": GIVEN_INK, "hatch": "///", "linewidth": 1.0}
        offsets = [x + (place - (len(figure.curves) - 1) / 2) * width for x in curve.x]
        axes.bar(offsets, curve.y, width=width * 0.92, label=_label(curve), **style)
    axes.set_xticks(range(len(figure.categories)), figure.categories, fontsize=8)


def _label(curve: Curve) -> str:
    return f"{curve.label} ({curve.kind})"
