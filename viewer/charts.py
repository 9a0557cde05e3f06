"""From tables to plotly figures. Pure: the same table gives the same figure, in the app and in a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from recorder.schema import BatchInfo, DtypeLimits, Role
from viewer.chart_hover import hover_texts, non_finite_word, short_place
from viewer.chart_style import (
    METRIC_GLYPHS,
    METRIC_SYMBOLS,
    METRIC_WORDS,
    RIGHT_MARGIN,
    Palette,
    axis_style,
    base_layout,
    palette,
    role_word,
)
from viewer.picture import Picture
from viewer.scale import Limit, Scale, scale_of
from viewer.strips import add_strips, strips_height, strips_of

GL_FROM = 2_500
"""Points from which WebGL draws; below it SVG is sharper and works on every screen."""

POINTS = "points"
"""`meta` of every trace that holds data, to tell it from decoration."""

LABELLED_FRAMES = 44
_ROLE_ORDER = [role.value for role in Role]
_X_TITLES = {"execution": "execution order (seq)", "depth": "module depth", "batch": "batch"}


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
    that counts batches. Each point's `customdata` is (seq, role, key).
    """
    colours = palette(dark)
    dtypes = [*picture.points["dtype"].unique(), *picture.marks["dtype"].unique()]
    scale = scale_of(picture.points["value"].to_numpy(), finfo, dtypes, bool(len(picture.marks)))
    figure = go.Figure()
    figure.add_traces(list(_point_traces(picture, scale, colours)))
    figure.add_traces(list(_mark_traces(picture, scale, colours)))
    figure.update_layout(**base_layout(colours, height), margin={"l": 8, "r": RIGHT_MARGIN, "t": 58, "b": 8})
    figure.update_layout(legend=_legend(colours), shapes=[], annotations=[])
    figure.update_yaxes(**_y_axis(scale, colours))
    figure.update_xaxes(**_x_axis(picture, colours))
    _add_rails(figure, scale, colours)
    _add_limits(figure, scale, colours)
    _add_symbol_key(figure, picture, colours)
    _add_batches(figure, picture, colours)
    _add_depths(figure, picture, colours)
    _add_selected(figure, picture, selected, colours)
    _add_origin(figure, picture, scale, colours)
    if picture.x == "batch" and strips_of(batches):
        _add_strips_below(figure, batches, colours, height)
    return figure


def growth_figure(
    table: pd.DataFrame, finfo: dict[str, DtypeLimits], *, dark: bool = False, height: int = 240
) -> go.Figure:
    """One tensor over its batches: abs max and abs min, the limits of its dtype, and where it was non-finite."""
    colours = palette(dark)
    values = table[["abs_max", "abs_min"]].to_numpy(dtype=np.float64).ravel()
    scale = scale_of(values[np.isfinite(values)], finfo, table["dtype"].unique(), bool(table["flagged"].any()))
    figure = go.Figure()
    for metric in ("abs_max", "abs_min"):
        figure.add_trace(_growth_trace(table, metric, scale, colours))
    figure.add_trace(_growth_marks(table[table["flagged"]], scale, colours))
    figure.update_layout(
        **base_layout(colours, height), margin={"l": 8, "r": RIGHT_MARGIN, "t": 8, "b": 8}, showlegend=False
    )
    figure.update_yaxes(**_y_axis(scale, colours))
    figure.update_xaxes(**axis_style(colours), tickformat="d", showgrid=False)
    figure.update_xaxes(title_text="batch", title_standoff=4)
    _add_rails(figure, scale, colours)
    _add_limits(figure, scale, colours)
    return figure


def _add_strips_below(figure: go.Figure, batches: tuple[BatchInfo, ...], colours: Palette, height: int) -> None:
    below = strips_height(batches)
    share = below / (below + height - 110)
    figure.update_layout(height=height + below, yaxis_domain=[min(0.95, share + 0.02), 1.0])
    add_strips(figure, batches, colours, first_axis=2, top=share)


def _point_traces(picture: Picture, scale: Scale, colours: Palette) -> Iterator[go.Scatter | go.Scattergl]:
    trace = go.Scattergl if len(picture.points) > GL_FROM else go.Scatter
    dense = len(picture.points) > GL_FROM
    first = True
    for role in _ROLE_ORDER:
        of_role = picture.points[picture.points["role"] == role]
        first = True
        for metric, part in of_role.groupby("metric", observed=True, sort=False):
            yield trace(
                x=part["x"].to_numpy(),
                y=_on_axis(part["value"].to_numpy(), scale),
                mode="markers",
                name=role_word(role),
                legendgroup=role,
                showlegend=first,
                meta=POINTS,
                marker=_marker(str(metric), colours.roles[role], dense),
                unselected={"marker": {"opacity": 0.75}},
                customdata=_customdata(part),
                hovertext=hover_texts(part),
                hovertemplate="%{hovertext}<extra></extra>",
            )
            first = False


def _marker(metric: str, colour: str, dense: bool) -> dict[str, Any]:
    size = 5 if dense else 7
    line = {"width": 1.1 if metric == "abs_min" else 0, "color": colour}
    return {"symbol": METRIC_SYMBOLS[metric], "size": size, "color": colour, "opacity": 0.85, "line": line}


def _customdata(part: pd.DataFrame) -> list[list[Any]]:
    return [
        [int(seq), str(role), str(key)] for seq, role, key in zip(part["seq"], part["role"], part["key"], strict=True)
    ]


def _on_axis(values: Any, scale: Scale) -> Any:
    """Values where the axis has them: zeros on their rail."""
    return values if scale.bottom is None else np.where(values == 0, 10.0**scale.bottom, values)


def _mark_traces(picture: Picture, scale: Scale, colours: Palette) -> Iterator[go.Scatter | go.Scattergl]:
    if scale.top is None:
        return
    trace = go.Scattergl if len(picture.marks) > GL_FROM else go.Scatter
    expected = picture.marks["expected"].fillna(False).astype(bool)
    kinds = (
        ("non-finite", picture.marks[~expected], colours.bad, 10),
        ("expected non-finite", picture.marks[expected], colours.muted, 7),
    )
    for name, part, colour, size in kinds:
        if len(part):
            yield trace(
                x=part["x"].to_numpy(),
                y=np.full(len(part), 10.0**scale.top),
                mode="markers",
                name=name,
                meta=POINTS,
                marker={"symbol": "x-thin", "size": size, "line": {"width": 2, "color": colour}, "color": colour},
                unselected={"marker": {"opacity": 1}},
                customdata=_customdata(part),
                hovertext=hover_texts(part),
                hovertemplate="%{hovertext}<extra></extra>",
            )


def _add_symbol_key(figure: go.Figure, picture: Picture, colours: Palette) -> None:
    """Which symbol is which metric, beside the legend."""
    drawn = set(picture.points["metric"])
    words = [f"{METRIC_GLYPHS[metric]} {METRIC_WORDS[metric]}" for metric in METRIC_GLYPHS if metric in drawn]
    figure.add_annotation(
        x=1.005,
        xref="paper",
        y=1.0,
        yref="paper",
        text="<br>".join(words),
        align="left",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        font={"size": 12, "color": colours.muted},
    )


def _legend(colours: Palette) -> dict[str, Any]:
    return {
        "orientation": "h",
        "x": 0,
        "y": 1.045,
        "yanchor": "bottom",
        "font": {"size": 13, "color": colours.text},
        "itemsizing": "constant",
        "bgcolor": "rgba(0,0,0,0)",
    }


def _y_axis(scale: Scale, colours: Palette) -> dict[str, Any]:
    places, words = scale.ticks
    style = axis_style(colours)
    return {**style, "type": "log", "range": [scale.low, scale.high], "tickvals": places, "ticktext": words}


def _x_axis(picture: Picture, colours: Palette) -> dict[str, Any]:
    frames = picture.frames
    style = {**axis_style(colours), "showgrid": False}
    style["title"] = {**style["title"], "text": _X_TITLES[picture.x], "standoff": 6}
    if not len(frames):
        return style
    low, high = float(frames["x"].min()), float(frames["x"].max())
    pad = max(0.6, (high - low) * 0.012)
    style["range"] = [low - pad, high + pad]
    if picture.x != "execution":
        return {**style, "tickformat": "d", "dtick": 1 if high - low < 25 else None}
    if len(frames) <= LABELLED_FRAMES:
        names = [short_place(name) for name in frames["module"]]
        return {**style, "tickvals": frames["x"].tolist(), "ticktext": names, "tickangle": -50, "title": None}
    every = frames.iloc[:: max(1, len(frames) // 10)]
    return {**style, "tickvals": every["x"].tolist(), "ticktext": [f"{seq:,}" for seq in every["seq"]]}


def _add_rails(figure: go.Figure, scale: Scale, colours: Palette) -> None:
    """A faint band behind the rails, so that nobody reads a value off them."""
    for rail, fill in ((scale.top, colours.bad_fill), (scale.bottom, colours.neutral_fill)):
        if rail is not None:
            half = (scale.high - scale.low) * 0.026
            figure.add_hrect(
                y0=10.0 ** (rail - half), y1=10.0 ** (rail + half), fillcolor=fill, line_width=0, layer="below"
            )


def _add_limits(figure: go.Figure, scale: Scale, colours: Palette) -> None:
    """A line for each limit in view, and its name beside the plot, where it hides no point."""
    for limit in scale.limits:
        colour, dash = _limit_style(limit, colours)
        figure.add_hline(y=limit.value, line={"color": colour, "width": 1.2, "dash": dash}, layer="below")
        _beside(figure, limit, colour, y=float(np.log10(limit.value)))
    for limit in scale.beyond:
        _beside(figure, limit, colours.muted, y=1.0, yref="paper", yanchor="top", before="far above: ")


def _beside(figure: go.Figure, limit: Limit, colour: str, before: str = "", **place: Any) -> None:
    figure.add_annotation(
        x=1.005,
        xref="paper",
        text=f"{before}{'<br>'.join(limit.words)}",
        align="left",
        showarrow=False,
        xanchor="left",
        font={"size": 12, "color": colour},
        **place,
    )


def _limit_style(limit: Limit, colours: Palette) -> tuple[str, str]:
    if limit.kind == "max":
        return colours.bad, "dash"
    return (colours.caution, "dash") if limit.kind == "smallest_normal" else (colours.muted, "dot")


def _add_batches(figure: go.Figure, picture: Picture, colours: Palette) -> None:
    """A line where a batch begins, and its number above it, as many as there is room for."""
    batches = picture.batches
    if picture.x != "execution" or len(batches) < 2:
        return
    every = max(1, -(-len(batches) // 24))
    for i, (batch, start) in enumerate(zip(batches["batch"], batches["start"], strict=True)):
        if i % every:
            continue
        figure.add_vline(x=start - 0.5, line={"color": colours.line, "width": 1}, layer="below")
        figure.add_annotation(
            x=start - 0.5,
            y=1,
            yref="paper",
            text=f"batch {batch}" if len(batches) <= 12 or not i else f"{batch}",
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            font={"size": 12, "color": colours.muted},
        )


def _add_depths(figure: go.Figure, picture: Picture, colours: Palette) -> None:
    """Every other depth on a faint band."""
    if picture.x != "execution" and len(picture.frames):
        first, last = round(picture.frames["x"].min()), round(picture.frames["x"].max())
        for unit in range(first, min(last, first + 60) + 1):
            if unit % 2:
                figure.add_vrect(
                    x0=unit - 0.5, x1=unit + 0.5, fillcolor=colours.neutral_fill, line_width=0, layer="below"
                )


def _add_selected(figure: go.Figure, picture: Picture, selected: int | None, colours: Palette) -> None:
    here = picture.frames[picture.frames["seq"] == selected] if selected is not None else picture.frames[:0]
    for x in here["x"]:
        figure.add_vline(x=x, line={"color": colours.text, "width": 1, "dash": "dot"}, layer="below")


def _add_origin(figure: go.Figure, picture: Picture, scale: Scale, colours: Palette) -> None:
    """Names the origin on its rail: on the side where nothing can have been non-finite yet, if there is room."""
    born = picture.marks[picture.marks["origin"]].head(1)
    if scale.top is None:
        return
    for _, row in born.iterrows():
        low, high = picture.frames["x"].min(), picture.frames["x"].max()
        left = row["x"] > low + 0.4 * (high - low)
        figure.add_annotation(
            x=row["x"],
            y=scale.top,
            text=f"<b>origin</b>  {short_place(row['module'], 44)}  {non_finite_word(row)}",
            showarrow=True,
            arrowhead=0,
            arrowwidth=1,
            arrowcolor=colours.bad,
            standoff=8,
            ax=-18 if left else 18,
            ay=0,
            xanchor="right" if left else "left",
            font={"size": 13, "color": colours.bad},
        )


def _growth_trace(table: pd.DataFrame, metric: str, scale: Scale, colours: Palette) -> go.Scatter:
    part = table[table[metric].notna()]
    colour = colours.roles["output"] if metric == "abs_max" else colours.muted
    return go.Scatter(
        x=part["batch"].to_numpy(),
        y=_on_axis(part[metric].to_numpy(dtype=np.float64), scale),
        customdata=part[metric].to_numpy(dtype=np.float64),
        mode="lines+markers" if len(part) <= 120 else "lines",
        line={"color": colour, "width": 1.6},
        marker={"size": 5, "symbol": METRIC_SYMBOLS[metric]},
        meta=POINTS,
        hovertemplate=f"batch %{{x}}<br>{METRIC_WORDS[metric]} %{{customdata:.3e}}<extra></extra>",
    )


def _growth_marks(table: pd.DataFrame, scale: Scale, colours: Palette) -> go.Scatter:
    height = 1.0 if scale.top is None else 10.0**scale.top
    return go.Scatter(
        x=table["batch"].to_numpy(),
        y=np.full(len(table), height),
        mode="markers",
        marker={"symbol": "x-thin", "size": 10, "line": {"width": 2, "color": colours.bad}},
        meta=POINTS,
        hovertemplate="batch %{x}<br>non-finite<extra></extra>",
    )
