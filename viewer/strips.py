"""What ran beside the frames, as strips: loss, learning rate, loss scale and gradient norm of each batch. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recorder.schema import BatchInfo
from viewer.canvas import Canvas
from viewer.chart_style import RIGHT_MARGIN, Palette, axis_style, base_layout, palette, short_number, whole_ticks

STRIPS = {"loss": "loss", "learning_rate": "learning rate", "loss_scale": "loss scale", "grad_norm": "grad norm"}
_HEIGHT = 62
_GAP = 0.14
"""Part of a strip's height that is left free below it."""


def strips_of(batches: tuple[BatchInfo, ...]) -> list[str]:
    """Those of STRIPS that some batch has a number for."""
    return [name for name in STRIPS if any(getattr(one, name) is not None for one in batches)]


def strips_figure(
    batches: tuple[BatchInfo, ...], shown: tuple[int, int] | None = None, *, dark: bool = False
) -> go.Figure:
    """One strip a fact over all batches of the run; the batches in view (first and last) stand on a band."""
    colours = palette(dark)
    canvas = Canvas(colours, base_layout(colours, 44 + strips_height(batches)))
    canvas.layout |= {
        "showlegend": False,
        "hovermode": "x unified",
        "margin": {"l": 8, "r": RIGHT_MARGIN, "t": 4, "b": 4},
        "xaxis": {**axis_style(colours), **whole_ticks(len(batches)), "showgrid": False},
    }
    canvas.layout["xaxis"]["title"] |= {"text": "batch", "standoff": 4}
    if batches:
        canvas.layout["xaxis"]["range"] = [batches[0].batch - 0.5, batches[-1].batch + 0.5]
    add_strips(canvas, batches, first_axis=1, top=1.0)
    if shown is not None and len(batches) > 1:
        canvas.band(colours.neutral_fill, x=(shown[0] - 0.5, shown[1] + 0.5))
    return canvas.figure()


def strips_height(batches: tuple[BatchInfo, ...]) -> int:
    """How many pixels the strips need."""
    return _HEIGHT * len(strips_of(batches))


def add_strips(canvas: Canvas, batches: tuple[BatchInfo, ...], *, first_axis: int, top: float) -> None:
    """Stack the strips into the lowest part of the figure, on its x axis, which must count batches.

    first_axis: number of the first y axis to use. top: how much of the plot's height they fill, from 0 to 1.
    """
    names = strips_of(batches)
    for i, name in enumerate(names):
        high = top * (1 - i / len(names))
        low = max(0.0, top * (1 - (i + 1 - _GAP) / len(names)))
        axis = "" if first_axis + i == 1 else str(first_axis + i)
        canvas.layout[f"yaxis{axis}"] = {**_y_style(batches, name, canvas.colours), "domain": [low, high]}
        canvas.layout["xaxis"]["anchor"] = f"y{axis}"
        _add_line(canvas, batches, name, f"y{axis}")
        words = f"{STRIPS[name]}<br>{_last(batches, name)}"
        canvas.beside(words, canvas.colours.muted, y=(low + high) / 2, yref="paper")


def _add_line(canvas: Canvas, batches: tuple[BatchInfo, ...], name: str, axis: str) -> None:
    """The line, and a cross where the number was non-finite or the scaler skipped a step."""
    x, y = np.array([one.batch for one in batches]), _values(batches, name)
    fine, words, colours = np.isfinite(y), STRIPS[name], canvas.colours
    canvas.trace(
        x=x,
        y=np.where(fine, y, np.nan),
        yaxis=axis,
        mode="lines" if fine.sum() > 1 else "markers",
        line={"color": colours.text, "width": 1.3},
        marker={"color": colours.text, "size": 5},
        name=words,
        showlegend=False,
        hovertemplate=f"{words} %{{y:.4g}}<extra></extra>",
    )
    top = float(np.max(y[fine])) if fine.any() else 1.0
    bad = np.array([getattr(one, name) is not None for one in batches]) & ~fine
    skipped = np.array([name == "loss_scale" and one.skipped is True for one in batches], dtype=bool)
    _add_crosses(canvas, x[bad], top, axis, f"{words} is non-finite", colours.bad)
    _add_crosses(canvas, x[skipped], top, axis, "step skipped", colours.caution)


def _add_crosses(canvas: Canvas, x: Any, y: float, axis: str, words: str, colour: str) -> None:
    if len(x):
        canvas.trace(
            x=x,
            y=np.full(len(x), y),
            yaxis=axis,
            mode="markers",
            marker={"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": colour}},
            name=words,
            showlegend=False,
            hovertemplate=f"{words}<extra></extra>",
        )


def _values(batches: tuple[BatchInfo, ...], name: str) -> Any:
    numbers = [getattr(one, name) for one in batches]
    return np.array([math.nan if number is None else float(number) for number in numbers])


def _y_style(batches: tuple[BatchInfo, ...], name: str, colours: Palette) -> dict[str, Any]:
    """Only the least and the greatest value get a tick: there is no room for more."""
    values = _values(batches, name)
    values = values[np.isfinite(values)]
    style = axis_style(colours)
    if not len(values):
        return {**style, "tickvals": []}
    ends = [float(value) for value in dict.fromkeys((values.min(), values.max()))]
    style |= {"tickvals": ends, "ticktext": [short_number(value) for value in ends]}
    if len(ends) == 1:
        return {**style, "range": [ends[0] - 1, ends[0] + 1]}
    if ends[0] > 0 and ends[1] / ends[0] > 50:
        return {**style, "type": "log", "range": _wider(*np.log10(ends))}
    return {**style, "range": _wider(*ends)}


def _wider(low: float, high: float) -> list[float]:
    return [low - 0.06 * (high - low), high + 0.06 * (high - low)]


def _last(batches: tuple[BatchInfo, ...], name: str) -> str:
    values = _values(batches, name)
    seen = [value for value in values if not math.isnan(value)]
    return f"last {short_number(seen[-1]) if math.isfinite(seen[-1]) else seen[-1]}" if seen else ""
