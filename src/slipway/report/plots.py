"""The report's plots as inline SVG: deterministic, transparent, and coloured by the page's own CSS variables.

Matplotlib draws with marker colours that are then replaced by `currentColor` and `var(--…)`, so one picture is legible in
light and dark. Text stays text, so it can be read out, searched and scaled.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from slipway.bench import RequestRecord

MAX_ROWS = 64
"""Requests drawn in the timeline; more would be rows thinner than a line."""

TICKS_PER_ROW = 900
"""Frames of a row are drawn at this resolution, a point each: frames that fall on one point are one tick, and three ticks or
more side by side are one bar, which looks the same and keeps the file small."""

INK, MUTED, ACCENT, SECOND, BAD = "#010203", "#010204", "#010205", "#010206", "#010207"

_CSS = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    ACCENT: "var(--accent)",
    SECOND: "var(--second)",
    BAD: "var(--bad)",
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollar signs is a name
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.titlelocation": "left",
}


def timeline(records: Sequence[RequestRecord]) -> str:
    """An SVG with one row per request: the wait for the first token as a line, each token frame as a tick.

    Time runs from the first request sent, in seconds. At most MAX_ROWS requests, the earliest.
    """
    shown = sorted(records, key=lambda record: (record.start_ms, record.index))[:MAX_ROWS]
    end_ms = max((record.start_ms + (record.e2e_ms or 0.0) for record in shown), default=0.0) or 1.0

    def draw(axes: Axes) -> None:
        for row, record in enumerate(shown):
            _row(axes, row, record, end_ms)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, end_ms / 1000 * 1.01)
        axes.set_xlabel("seconds since the first request")
        axes.set_ylabel("request")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    failed = sum(not record.completed for record in shown)
    label = (
        f"Token timeline of {len(shown)} requests over {end_ms / 1000:.2f} seconds"
        + (f"; {failed} of them failed" if failed else "")
        + "."
    )
    return _svg("timeline", label, (9.2, min(1.1 + 0.17 * len(shown), 12)), draw)


def distribution(name: str, series: Sequence[tuple[str, Sequence[float]]], unit: str) -> str:
    """An SVG of the cumulative distribution of each of `series` (words, values): which share is at or below a value."""
    colours = (ACCENT, SECOND)
    kept = [(words, sorted(values)) for words, values in series if values]

    def draw(axes: Axes) -> None:
        for (words, values), colour in zip(kept, colours, strict=False):
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.step([values[0], *values], [0, *shares], where="post", color=colour, linewidth=1.6, label=words)
            if len(values) <= 40:
                axes.plot(values, shares, "o", color=colour, markersize=3)
        axes.set_ylim(0, 1.04)
        axes.set_xlim(
            0, 1.06 * max((values[-1] for _, values in kept), default=0.0) or 1.0
        )  # from zero, so that a small spread looks small
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        axes.set_xlabel(unit)
        axes.set_ylabel("share of requests")
        axes.grid(axis="y", color=MUTED, alpha=0.25, linewidth=0.6)
        if len(kept) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)

    middle = "; ".join(f"{words}: median {values[len(values) // 2]:.3g} {unit}" for words, values in kept)
    return _svg(name, f"Distribution. {middle}." if middle else "No values.", (4.5, 2.7), draw)


def _row(axes: Axes, row: int, record: RequestRecord, end_ms: float) -> None:
    """The request's line from sent to end, its wait, and its ticks as one path."""
    start_s, end_s = record.start_ms / 1000, (record.start_ms + (record.e2e_ms or 0.0)) / 1000
    colour = ACCENT if record.completed else BAD
    axes.plot([start_s, end_s], [row, row], color=MUTED, linewidth=0.8, alpha=0.6, solid_capstyle="butt")
    step_s = end_ms / 1000 / TICKS_PER_ROW
    ticks, bars = _runs({round((start_s + offset / 1000) / step_s) for offset in record.frames_ms})
    low, high = row - 0.36, row + 0.36
    if ticks:
        points = [(tick * step_s, side) for tick in ticks for side in (low, high)]
        path = Path(points, [Path.MOVETO, Path.LINETO] * len(ticks))
        axes.add_patch(PathPatch(path, edgecolor=colour, facecolor="none", linewidth=0.8))
    for first, last in bars:
        axes.add_patch(
            Rectangle((first * step_s, low), (last - first) * step_s, high - low, color=colour, linewidth=0.8)
        )
    if not record.completed:
        axes.plot([end_s], [row], "x", color=BAD, markersize=5)


def _runs(places: set[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """The `places` that stand alone or in pairs, and the first and last of those that stand side by side in longer runs."""
    alone: list[int] = []
    runs: list[tuple[int, int]] = []
    for start in sorted(place for place in places if place - 1 not in places):
        end = start
        while end + 1 in places:
            end += 1
        if end - start < 2:
            alone += range(start, end + 1)
        else:
            runs.append((start, end))
    return alone, runs


def _svg(name: str, label: str, size: tuple[float, float], draw: Callable[[Axes], None]) -> str:
    """The drawing as an SVG element named `name`, with `label` for readers who do not see it."""
    # The salt fixes the ids within a picture and keeps those of two pictures on one page apart.
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own matplotlibrc must not change the evidence
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": f"slipway-{name}"})
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        # Fixed margins in inches, wide enough for "100 %": measuring every text twice would double the time.
        width, height = size
        draw(figure.add_axes((0.72 / width, 0.5 / height, 1 - 0.84 / width, 1 - 0.78 / height)))
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return _inline(target.getvalue(), name, label)


def _inline(svg: str, name: str, label: str) -> str:
    """`svg` fit to stand in a page: no prologue, no metadata, ids of its own, the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg).replace("url(#", f"url(#{name}-")
    svg = re.sub(r"font: ([0-9.]+px)[^;\"]*", r"font-size: \1; font-family: inherit", svg)
    for colour, css in _CSS.items():
        svg = svg.replace(colour, css)
    width, height = re.findall(r'(?:width|height)="([0-9.]+)pt"', svg)[:2]
    head = (
        f'<svg role="img" aria-label="{html.escape(label, quote=True)}" viewBox="0 0 {width} {height}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: head, svg, count=1)
