"""Pictures: curves of runs, who holds which box of a layout, pipeline schedules as timelines.

Curves are drawn by matplotlib where it is installed; everything else, and curves without it, is SVG.
"""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Iterable, Sequence
from typing import Any

from . import _planaria
from ._place import address
from ._planaria import Layout
from ._train import Outcome, Trainer

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d")
_STEPS = {"forward": "#4c78a8", "backward": "#f58518", "gradient of the input": "#eeca3b"}
_OTHER = "#54a24b"


@dataclasses.dataclass(frozen=True, repr=False)
class Picture:
    """A picture as SVG; notebooks show it.

    >>> import planaria, tempfile
    >>> planaria.plot(planaria.schedule("1f1b", 2, 2)).save(tempfile.mkdtemp() + "/timeline.svg")
    """

    svg: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file."""
        with open(address(path), "w", encoding="utf-8") as file:
            file.write(self.svg)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture of {len(self.svg)} bytes of SVG"


@dataclasses.dataclass(frozen=True)
class Span:
    """One piece of a rank's work, in units of one forward."""

    what: str
    stage: int
    micro_batch: int
    start: float
    end: float


class Schedule:
    """A pipeline schedule: what every rank does when. ``bubble`` is the part of the time in which each one waits.

    >>> import planaria
    >>> planaria.schedule("f_then_b", 2, 2).spans[0][0]
    Span(what='forward', stage=0, micro_batch=0, start=0.0, end=1.0)
    """

    def __init__(self, kind: str, ranks: int, micro_batches: int, chunks: int | None = None) -> None:
        rows, makespan, bubble = _planaria.spans(kind, ranks, micro_batches, chunks)
        self.kind: str = kind
        self.micro_batches: int = micro_batches
        self.makespan: float = makespan
        self.bubble: list[float] = bubble
        self.spans: list[list[Span]] = [[Span(*span) for span in row] for row in rows]

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.spans)

    def __repr__(self) -> str:
        worst = max(self.bubble, default=0.0)
        return f"Schedule '{self.kind}' {self.ranks} ranks, {self.micro_batches} micro-batches, bubble {worst:.3f}"

    def _repr_html_(self) -> str:
        return _timeline(self).svg


def schedule(kind: str, ranks: int, micro_batches: int, *, chunks: int | None = None) -> Schedule:
    """A pipeline schedule: ``f_then_b``, ``1f1b``, ``interleaved``, ``zb_h1`` or ``zbv``.

    >>> import planaria
    >>> planaria.schedule("1f1b", ranks=4, micro_batches=8)
    Schedule '1f1b' 4 ranks, 8 micro-batches, bubble 0.273
    """
    return Schedule(kind, ranks, micro_batches, chunks)


def plot(
    thing: Any,
    *,
    metric: str = "loss",
    smooth: float | None = None,
    size: tuple[int, int] = (900, 450),
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw a run or several (folders, trainers, outcomes), a ``Layout``, or a ``Schedule``.

    A run gives a figure of matplotlib where that is installed, else a ``Picture``; the others always give a ``Picture``.
    With ``path`` the picture is also written there, as SVG.

    >>> import planaria
    >>> planaria.plot(planaria.mesh(tp=2).layout((4, 4), "tp:S0")).svg[:4]
    '<svg'
    """
    if isinstance(thing, Layout):
        drawn = _boxes(thing)
    elif isinstance(thing, Schedule):
        drawn = _timeline(thing)
    else:
        svg, curves = _planaria.chart(_folders(thing), metric, smooth, size)
        drawn = Picture(svg)
        if path is None and (figure := _figure(curves, metric, size)) is not None:
            return figure
    if path is not None:
        drawn.save(path)
    return drawn


def _folders(thing: Any) -> list[str]:
    if isinstance(thing, (str, os.PathLike)):
        return [os.fspath(thing)]
    if isinstance(thing, Trainer):
        if thing._folder is None:
            raise ValueError("the trainer has no run folder; pass run= when it is made")
        return [thing._folder]
    if isinstance(thing, Outcome):
        if thing.folder is None:
            raise ValueError("the outcome has no run folder; pass the folder")
        return [thing.folder]
    if isinstance(thing, Iterable):
        return [folder for one in thing for folder in _folders(one)]
    raise TypeError(f"a {type(thing).__name__} cannot be drawn; give a run's folder, a Layout or a Schedule")


def _figure(curves: Sequence[tuple[str, Any, Any]], metric: str, size: tuple[int, int]) -> Any:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    figure = Figure(figsize=(size[0] / 100, size[1] / 100))
    axes = figure.subplots()
    for at, (name, points, smooth) in enumerate(curves):
        colour = _COLOURS[at % len(_COLOURS)]
        axes.plot([p[0] for p in points], [p[1] for p in points], color=colour, alpha=0.3)
        axes.plot([p[0] for p in smooth], [p[1] for p in smooth], color=colour, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(metric)
    axes.legend()
    return figure


def _svg(width: float, height: float, body: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif"'
    return f'{head} font-size="11">{"".join(body)}</svg>'


def _rect(x: float, y: float, w: float, h: float, colour: str, told: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{h:.1f}" fill="{colour}" '
        f'stroke="white"><title>{html.escape(told)}</title></rect>'
    )


def _text(x: float, y: float, text: str, colour: str = "black", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _boxes(layout: Layout) -> Picture:
    """The first two dims of the tensor, and on each box the ranks that hold it."""
    shape = layout.shape or (1,)
    rows, columns = (shape[0], shape[1]) if len(shape) > 1 else (1, shape[0])
    width, height, top = 420.0, 420.0 * min(1.0, max(0.2, rows / max(columns, 1))), 24.0
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for rank in layout.mesh.ranks():
        for box in layout.boxes(rank):
            sides = tuple((side.start, side.stop) for side in box) or ((0, 1),)
            holders.setdefault(sides, []).append(rank)
    body = [_text(2, 14, str(layout), anchor="start")]
    for at, (sides, ranks) in enumerate(holders.items()):
        (r0, r1), (c0, c1) = (sides[0], sides[1]) if len(sides) > 1 else ((0, 1), sides[0])
        x, y = c0 / max(columns, 1) * width, top + r0 / max(rows, 1) * height
        w, h = (c1 - c0) / max(columns, 1) * width, (r1 - r0) / max(rows, 1) * height
        where = ", ".join(f"{a}..{b}" for a, b in sides)
        named = ", ".join(str(rank) for rank in ranks)
        body.append(_rect(x, y, w, h, _COLOURS[at % len(_COLOURS)], f"[{where}] on rank {named}"))
        if w > 14 and h > 12:
            short = named if len(named) * 6 < w else f"{len(ranks)} ranks" if w > 50 else str(len(ranks))
            body.append(_text(x + w / 2, y + h / 2 + 4, short, "white"))
    return Picture(_svg(width + 2, height + top + 2, body))


def _timeline(schedule: Schedule) -> Picture:
    unit, row, left, top = 22.0, 24.0, 54.0, 24.0
    body = [_text(2, 14, repr(schedule), anchor="start")]
    for rank, spans in enumerate(schedule.spans):
        y = top + rank * row
        body.append(_text(left - 6, y + row / 2 + 3, f"rank {rank}", anchor="end"))
        for span in spans:
            x, w = left + span.start * unit, (span.end - span.start) * unit
            told = f"{span.what} of micro-batch {span.micro_batch}, stage {span.stage}"
            body.append(_rect(x, y, w, row - 2, _STEPS.get(span.what, _OTHER), told))
            body.append(_text(x + w / 2, y + row / 2 + 3, str(span.micro_batch), "white"))
    return Picture(_svg(left + schedule.makespan * unit + 4, top + len(schedule.spans) * row + 4, body))
