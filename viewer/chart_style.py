"""Colours, symbols and words that all charts share. The hues can be told apart by colour-blind readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "'Source Sans Pro', 'Source Sans 3', 'Source Sans', system-ui, sans-serif"
RIGHT_MARGIN = 118
"""Pixels beside a plot for what its lines are called; the same everywhere, so that plots stand in line."""

METRIC_SYMBOLS = {"abs_max": "circle", "rms": "diamond", "abs_min": "circle-open"}
METRIC_GLYPHS = {"abs_max": "●", "rms": "◆", "abs_min": "○"}
METRIC_WORDS = {"abs_max": "abs max", "rms": "rms", "abs_min": "abs min"}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Palette:
    """The colours of one theme. roles: one for each role."""

    text: str
    muted: str
    grid: str
    line: str
    surface: str
    bad: str
    bad_fill: str
    caution: str
    caution_fill: str
    neutral_fill: str
    roles: dict[str, str]


LIGHT = Palette(
    text="#1f2933",
    muted="#66727f",
    grid="#eceff2",
    line="#c5ccd3",
    surface="#ffffff",
    bad="#c8102e",
    bad_fill="rgba(200, 16, 46, 0.06)",
    caution="#a86400",
    caution_fill="rgba(214, 138, 0, 0.07)",
    neutral_fill="rgba(102, 114, 127, 0.07)",
    roles={
        "output": "#0b62b5",
        "input": "#3fa7dc",
        "parameter": "#e0930f",
        "buffer": "#8a8f98",
        "grad_output": "#7a3e9d",
        "grad_input": "#c77bbf",
        "gradient": "#0d8a66",
        "optimizer_state": "#8a6d3b",
    },
)
DARK = Palette(
    text="#e4e8ec",
    muted="#98a3ae",
    grid="#23282f",
    line="#454d57",
    surface="#111418",
    bad="#ff5a67",
    bad_fill="rgba(255, 90, 103, 0.10)",
    caution="#e3a33b",
    caution_fill="rgba(227, 163, 59, 0.08)",
    neutral_fill="rgba(152, 163, 174, 0.09)",
    roles={
        "output": "#5b9dec",
        "input": "#8fd3f4",
        "parameter": "#f0b040",
        "buffer": "#9aa3ad",
        "grad_output": "#b18ae0",
        "grad_input": "#e3a9dd",
        "gradient": "#3fc79a",
        "optimizer_state": "#c4a56b",
    },
)


def palette(dark: bool) -> Palette:
    return DARK if dark else LIGHT


def role_word(role: str) -> str:
    """`grad_output` for a reader: `grad output`."""
    return role.replace("_", " ")


def power_of_ten(exponent: int) -> str:
    """A tick's label: `10⁻⁴`."""
    return f"10{str(exponent).translate(SUPERSCRIPTS)}"


def short_number(value: float) -> str:
    """Three digits at most: `6.55e4`, `0.25`, `1200`."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"


def base_layout(colours: Palette, height: int) -> dict[str, Any]:
    """What every figure begins with: transparent, calm, hover labels that a theme can't wash out."""
    return {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": colours.text},
        "hoverlabel": {
            "bgcolor": colours.surface,
            "bordercolor": colours.line,
            "font": {"family": FONT, "size": 13, "color": colours.text},
            "align": "left",
        },
        "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours.line, "activecolor": colours.text},
        "hovermode": "closest",
    }


def whole_ticks(count: int) -> dict[str, Any]:
    """How an axis that counts `count` units has its ticks: on whole numbers only."""
    return {"tickformat": "d", "dtick": 1 if count <= 25 else None}


def axis_style(colours: Palette) -> dict[str, Any]:
    """One axis: thin grid, no zero line, ticks in the muted colour."""
    return {
        "gridcolor": colours.grid,
        "linecolor": colours.line,
        "tickfont": {"color": colours.muted, "size": 12},
        "title": {"font": {"color": colours.muted, "size": 12}},
        "zeroline": False,
        "automargin": True,
    }
