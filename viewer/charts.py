"""From tables to plotly figures. Pure: the same table gives the same figure, in the app and in a report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from recorder.schema import BatchInfo, DtypeLimits, Role
from viewer.canvas import POINTS, Canvas
from viewer.chart_axes import add_batches, add_limits, add_rails, add_units, frames_axis, magnitude_axis, on_axis
from viewer.chart_hover import hover_texts, non_finite_word, short_place
from viewer.chart_style import (
    METRIC_GLYPHS,
    METRIC_SYMBOLS,
    METRIC_WORDS,
    RIGHT_MARGIN,
    axis_style,
    base_layout,
    palette,
    role_word,
    whole_ticks,
)
from viewer.picture import Picture
from viewer.scale import Scale, power, scale_of
from viewer.strips import add_strips, strips_height

GL_FROM = 2_500
"""Points from which WebGL draws; below it SVG is sharper and works on every screen."""

_CROWDED = 80
"""Non-finite records from which their crosses are smaller."""

_TOP = 58
"""Pixels above the plot, for the legend and the batches' numbers."""

_BATCH_LINE = 14
"""Pixels right above the plot that the batches' numbers take, the last of which may reach into the margin."""


def depth_figure(
    picture: Picture,
    finfo: dict[str, DtypeLimits],
    *,
    dark: bool = False,
    selected: int | None = None,
    batches: tuple[BatchInfo, ...] = (),
    height: int = 540,
) -> go.Figure:
    """The depth picture: magnitudes over execution order, module depth or batch, with the limits of their dtypes.

    selected: seq of a frame to point out. batches: what ran beside the frames; drawn as strips on the same axis when
    that counts batches. Each point's `customdata` is "seq/role/key".
    """
    colours = palette(dark)
    dtypes = [*picture.points["dtype"].unique(), *picture.marks["dtype"].unique()]
    values, is_tail = picture.points["value"].to_numpy(), (picture.points["metric"] == "abs_min").to_numpy()
    scale = scale_of(values[~is_tail], finfo, dtypes, bool(len(picture.marks)), tails=values[is_tail])
    canvas = Canvas(colours, base_layout(colours, height))
    canvas.layout |= {
        "margin": {"l": 8, "r": RIGHT_MARGIN, "t": _TOP, "b": 8},
        "legend": _legend(canvas),
        "yaxis": magnitude_axis(scale, colours),
        "xaxis": frames_axis(picture, colours),
    }
    _add_points(canvas, picture, scale)
    _add_marks(canvas, picture, scale)
    add_rails(canvas, scale)
    add_limits(canvas, scale)
    _add_symbol_key(canvas, picture)
    add_batches(canvas, picture)
    add_units(canvas, picture)
    _add_selected(canvas, picture, selected)
    _add_origin(canvas, picture, scale)
    if picture.x == "batch" and strips_height(batches):
        _add_strips_below(canvas, batches, height)
    return canvas.figure()


def growth_figure(
    table: pd.DataFrame, finfo: dict[str, DtypeLimits], *, dark: bool = False, height: int = 250
) -> go.Figure:
    """One tensor over its batches: abs max and abs min, the limits of its dtype, and where it was non-finite.

    table: as `viewer.query.growth` gives it.
    """
    colours = palette(dark)
    values = table[["abs_max", "abs_min"]].to_numpy(dtype=np.float64).ravel()
    scale = scale_of(values[np.isfinite(values)], finfo, table["dtype"].unique(), bool(table["flagged"].any()))
    canvas = Canvas(colours, base_layout(colours, height))
    canvas.layout |= {
        "margin": {"l": 8, "r": RIGHT_MARGIN, "t": 8, "b": 8},
        "showlegend": False,
        "yaxis": magnitude_axis(scale, colours),
        "xaxis": {**axis_style(colours), **whole_ticks(len(table)), "showgrid": False},
    }
    canvas.layout["xaxis"]["title"] |= {"text": "batch", "standoff": 4}
    for metric in ("abs_max", "abs_min"):
        _add_growth(canvas, table, metric, scale)
    _add_growth_marks(canvas, table[table["flagged"]], scale)
    add_rails(canvas, scale)
    add_limits(canvas, scale)
    return canvas.figure()


def _add_points(canvas: Canvas, picture: Picture, scale: Scale) -> None:
    dense = len(picture.points) > GL_FROM
    for role in (role.value for role in Role):
        of_role = picture.points[picture.points["role"] == role]
        for i, (metric, part) in enumerate(of_role.groupby("metric", observed=True, sort=False)):
            canvas.trace(
                type="scattergl" if dense else "scatter",
                x=part["x"].to_numpy(),
                y=on_axis(part["value"].to_numpy(), scale),
                mode="markers",
                name=role_word(role),
                legendgroup=role,
                showlegend=i == 0,
                meta=POINTS,
                marker=_marker(str(metric), canvas.colours.roles[role], dense),
                unselected={"marker": {"opacity": 0.75}},
                **_said(part),
            )


def _marker(metric: str, colour: str, dense: bool) -> dict[str, Any]:
    line = {"width": 1.1 if metric == "abs_min" else 0, "color": colour}
    size = 5 if dense else 7
    return {"symbol": METRIC_SYMBOLS[metric], "size": size, "color": colour, "opacity": 0.85, "line": line}


def _said(part: pd.DataFrame) -> dict[str, Any]:
    """What the points say under the pointer, and which records they are."""
    places = [f"{seq}/{role}/{key}" for seq, role, key in zip(part["seq"], part["role"], part["key"], strict=True)]
    return {
        "customdata": np.array(places, dtype=object),
        "hovertext": np.array(hover_texts(part), dtype=object),
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _add_marks(canvas: Canvas, picture: Picture, scale: Scale) -> None:
    if scale.top is None:
        return
    expected = picture.marks["expected"].fillna(False).astype(bool)
    kinds = (
        ("expected", picture.marks[expected], canvas.colours.muted, 7),
        ("non-finite", picture.marks[~expected], canvas.colours.bad, 10 if len(picture.marks) < _CROWDED else 7),
    )
    for name, part, colour, size in kinds:
        if len(part):
            canvas.trace(
                type="scattergl" if len(part) > GL_FROM else "scatter",
                x=part["x"].to_numpy(),
                y=np.full(len(part), power(scale.top)),
                mode="markers",
                name=name,
                meta=POINTS,
                marker={"symbol": "x-thin", "size": size, "line": {"width": 2, "color": colour}, "color": colour},
                unselected={"marker": {"opacity": 1}},
                **_said(part),
            )


def _legend(canvas: Canvas) -> dict[str, Any]:
    font = {"size": 12, "color": canvas.colours.text}
    place = {"orientation": "h", "x": 0, "y": 1.045, "yanchor": "bottom"}
    return {**place, "font": font, "itemsizing": "constant", "itemwidth": 30, "bgcolor": "rgba(0,0,0,0)"}


def _add_symbol_key(canvas: Canvas, picture: Picture) -> None:
    """Which symbol is which metric, beside the legend."""
    drawn = set(picture.points["metric"])
    words = [f"{METRIC_GLYPHS[metric]} {METRIC_WORDS[metric]}" for metric in METRIC_GLYPHS if metric in drawn]
    canvas.beside("<br>".join(words), canvas.colours.muted, y=1.0, yref="paper", yanchor="bottom", yshift=_BATCH_LINE)


def _add_selected(canvas: Canvas, picture: Picture, selected: int | None) -> None:
    if selected is not None:
        for x in picture.frames["x"][picture.frames["seq"] == selected]:
            canvas.vertical(float(x), canvas.colours.text, "dot")


def _add_origin(canvas: Canvas, picture: Picture, scale: Scale) -> None:
    """Names the origin on its rail: on the side where nothing can have been non-finite yet, if there is room."""
    if scale.top is None:
        return
    for _, row in picture.marks[picture.marks["origin"]].head(1).iterrows():
        low, high = picture.frames["x"].min(), picture.frames["x"].max()
        left = row["x"] > low + 0.4 * (high - low)
        canvas.note(
            f"<b>origin</b>  {short_place(row['module'], 26)}  {non_finite_word(row)}",
            canvas.colours.bad,
            size=13,
            x=float(row["x"]),
            y=scale.top,
            showarrow=True,
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=canvas.colours.bad,
            standoff=8,
            ax=-18 if left else 18,
            ay=0,
            xanchor="right" if left else "left",
        )


def _add_strips_below(canvas: Canvas, batches: tuple[BatchInfo, ...], height: int) -> None:
    below = strips_height(batches)
    share = below / (below + height - _TOP - 50)
    canvas.layout["height"] = height + below
    canvas.layout["yaxis"]["domain"] = [min(0.95, share + 0.02), 1.0]
    add_strips(canvas, batches, first_axis=2, top=share)


def _add_growth(canvas: Canvas, table: pd.DataFrame, metric: str, scale: Scale) -> None:
    part = table[table[metric].notna()]
    values = part[metric].to_numpy(dtype=np.float64)
    colour = canvas.colours.roles["output"] if metric == "abs_max" else canvas.colours.muted
    canvas.trace(
        x=part["batch"].to_numpy(dtype=np.int64),
        y=on_axis(values, scale),
        customdata=values,
        mode="lines+markers" if len(part) <= 120 else "lines",
        line={"color": colour, "width": 1.6},
        marker={"size": 5, "symbol": METRIC_SYMBOLS[metric]},
        meta=POINTS,
        hovertemplate=f"batch %{{x}}<br>{METRIC_WORDS[metric]} %{{customdata:.3e}}<extra></extra>",
    )


def _add_growth_marks(canvas: Canvas, table: pd.DataFrame, scale: Scale) -> None:
    if scale.top is not None:
        canvas.trace(
            x=table["batch"].to_numpy(dtype=np.int64),
            y=np.full(len(table), power(scale.top)),
            mode="markers",
            marker={"symbol": "x-thin", "size": 10, "line": {"width": 2, "color": canvas.colours.bad}},
            meta=POINTS,
            hovertemplate="batch %{x}<br>non-finite<extra></extra>",
        )
