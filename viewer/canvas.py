"""A figure while it is drawn: plain lists, made into a plotly figure once, since plotly checks all at each addition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from viewer.chart_style import Palette

POINTS = "points"
"""`meta` of every trace that holds data, to tell it from decoration."""


@dataclass
class Canvas:
    """Traces, shapes and annotations of one figure, in the colours of one theme. x and y are values of the axes."""

    colours: Palette
    layout: dict[str, Any]
    traces: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def trace(self, **properties: Any) -> None:
        """Add a trace; `type` is scatter unless it is given."""
        self.traces.append({"type": "scatter", **properties})

    def horizontal(self, y: float, colour: str, dash: str, width: float = 1.2) -> None:
        """A line over the whole width, behind the data."""
        self._line({"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": y, "y1": y}, colour, dash, width)

    def vertical(self, x: float, colour: str, dash: str = "solid") -> None:
        """A line over the whole height, behind the data."""
        self._line({"xref": "x", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}, colour, dash, 1)

    def band(self, fill: str, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        """A filled band between two values of one axis, over the whole of the other, behind the data."""
        across = {"xref": "x", "x0": x[0], "x1": x[1]} if x else {"xref": "paper", "x0": 0, "x1": 1}
        along = {"yref": "y", "y0": y[0], "y1": y[1]} if y else {"yref": "paper", "y0": 0, "y1": 1}
        line = {"width": 0}
        self.shapes.append({"type": "rect", **across, **along, "fillcolor": fill, "line": line, "layer": "below"})

    def note(self, text: str, colour: str, size: int = 12, **place: Any) -> None:
        """A text without an arrow, unless `showarrow` says otherwise. `y` is log10 on a logarithmic axis."""
        font = {"size": size, "color": colour}
        self.annotations.append({"text": text, "showarrow": False, "align": "left", "font": font, **place})

    def beside(self, text: str, colour: str, **place: Any) -> None:
        """A text in the right margin, where it hides no point."""
        self.note(text, colour, x=1.005, xref="paper", xanchor="left", **place)

    def figure(self) -> go.Figure:
        """The figure."""
        layout = {**self.layout, "shapes": self.shapes, "annotations": self.annotations}
        return go.Figure({"data": self.traces, "layout": layout})

    def _line(self, ends: dict[str, Any], colour: str, dash: str, width: float) -> None:
        line = {"color": colour, "dash": dash, "width": width}
        self.shapes.append({"type": "line", **ends, "line": line, "layer": "below"})
