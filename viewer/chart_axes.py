"""The axes of the pictures of magnitudes, and what belongs to them: limits, rails, batches, depths. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from viewer.canvas import Canvas
from viewer.chart_hover import short_place
from viewer.chart_style import Palette, axis_style, whole_ticks
from viewer.picture import Picture
from viewer.scale import Limit, Scale, power

LABELLED_FRAMES = 44
"""Up to so many frames, each is named on the axis."""

_LABELLED_BATCHES = 12
_BANDS = 200
_X_TITLES = {"execution": "execution order (seq)", "depth": "module depth", "batch": "batch"}


def on_axis(values: Any, scale: Scale) -> Any:
    """Values where a logarithmic axis has them: zeros, and what is below its floor, on their rail."""
    if scale.bottom is None:
        return values
    return np.where((values == 0) | (values < 10.0**scale.floor), power(scale.bottom), values)


def magnitude_axis(scale: Scale, colours: Palette) -> dict[str, Any]:
    """The y axis: logarithmic, one label a decade or so, and the rails."""
    places, words = scale.ticks
    ends = [scale.low, scale.high]
    return {**axis_style(colours), "type": "log", "range": ends, "tickvals": places, "ticktext": words}


def frames_axis(picture: Picture, colours: Palette) -> dict[str, Any]:
    """The x axis: names of frames while there are few, else their seq, depth or batch."""
    frames, style = picture.frames, {**axis_style(colours), "showgrid": False}
    style["title"] |= {"text": _X_TITLES[picture.x], "standoff": 6}
    if not len(frames):
        return style
    low, high = float(frames["x"].min()), float(frames["x"].max())
    pad = max(0.6, (high - low) * 0.012)
    style["range"] = [low - pad, high + pad]
    if picture.x != "execution":
        return {**style, **whole_ticks(int(high - low))}
    if len(frames) <= LABELLED_FRAMES:
        names = [short_place(name) for name in frames["module"]]
        return {**style, "tickvals": frames["x"].tolist(), "ticktext": names, "tickangle": -50, "title": None}
    every = frames.iloc[:: max(1, len(frames) // 10)]
    return {**style, "tickvals": every["x"].tolist(), "ticktext": [f"{seq:,}" for seq in every["seq"]]}


def add_rails(canvas: Canvas, scale: Scale) -> None:
    """A faint band behind the rails, so that nobody reads a value off them."""
    half = (scale.high - scale.low) * 0.026
    for rail, fill in ((scale.top, canvas.colours.bad_fill), (scale.bottom, canvas.colours.neutral_fill)):
        if rail is not None:
            canvas.band(fill, y=(power(rail - half), power(rail + half)))


def add_limits(canvas: Canvas, scale: Scale) -> None:
    """A line for each limit in view, and its name beside the plot."""
    for limit in scale.limits:
        colour, dash = _limit_style(limit, canvas.colours)
        canvas.horizontal(limit.value, colour, dash)
        canvas.beside("<br>".join(limit.words), colour, y=float(np.log10(limit.value)))
    if scale.beyond:
        words = "<br>".join(f"{dtype}<br>{value}" for dtype, value in (limit.words for limit in scale.beyond))
        canvas.beside(f"far above:<br>{words}", canvas.colours.muted, yanchor="top", **_below_the_limits(scale))


def _below_the_limits(scale: Scale) -> dict[str, Any]:
    """The top of the plot, or, where the name of a limit stands there, right below that."""
    highest = max((limit.value for limit in scale.limits if limit.kind == "max"), default=None)
    return {"y": 0.99, "yref": "paper"} if highest is None else {"y": float(np.log10(highest)), "yshift": -24}


def _limit_style(limit: Limit, colours: Palette) -> tuple[str, str]:
    if limit.kind == "max":
        return colours.bad, "dash"
    return (colours.caution, "dash") if limit.kind == "smallest_normal" else (colours.muted, "dot")


def add_batches(canvas: Canvas, picture: Picture) -> None:
    """A line where a batch begins, and its number above it, as many as there is room for."""
    batches = picture.batches
    if picture.x != "execution" or len(batches) < 2:
        return
    above: dict[str, Any] = {"y": 1, "yref": "paper", "yanchor": "bottom"}
    canvas.note("batch", canvas.colours.muted, x=-0.005, xref="paper", xanchor="right", **above)
    every = -(-len(batches) // _LABELLED_BATCHES)
    for batch, start in list(zip(batches["batch"], batches["start"], strict=True))[::every]:
        canvas.vertical(start - 0.5, canvas.colours.line)
        canvas.note(f"{batch}", canvas.colours.muted, x=start - 0.5, xanchor="left", **above)


def add_units(canvas: Canvas, picture: Picture) -> None:
    """Every other depth or batch on a faint band."""
    if picture.x == "execution" or not len(picture.frames):
        return
    first, last = round(picture.frames["x"].min()), round(picture.frames["x"].max())
    if last - first < _BANDS:
        for unit in range(first + (first + 1) % 2, last + 1, 2):
            canvas.band(canvas.colours.neutral_fill, x=(unit - 0.5, unit + 0.5))
