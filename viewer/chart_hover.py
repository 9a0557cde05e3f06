"""The words of a chart: what a point says under the pointer, and names short enough for a label."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

import pandas as pd

from viewer.chart_style import role_word, short_number
from viewer.tables import printable


def hover_texts(points: pd.DataFrame) -> list[str]:
    """One text a row: full module path, class, tensor, place, numbers, dtype, shape and headroom."""
    names = _each(points, ("module", "module_class"), lambda row: f"<b>{row[0] or '(the model)'}</b>  {row[1]}")
    tensors = _each(points, ("role", "key", "dtype", "shape"), _tensor_line)
    columns = ("has_nan", "has_inf", "flagged", "expected", "num_nan", "num_posinf", "num_neginf")
    states = [
        _state(dict(zip(columns, row, strict=True))) if row[2] is True else ""
        for row in zip(*(points[name] for name in columns), strict=True)
    ]
    numbers = zip(points["abs_max"], points["abs_min"], points["headroom"], strict=True)
    places = zip(*(points[name] for name in ("phase", "recompute", "batch", "call", "seq")), strict=True)
    return [
        f"{name}<br>{tensor}<br>{state}{_numbers(*row)}<br>{_where(*place)}"
        for name, tensor, state, row, place in zip(names, tensors, states, numbers, places, strict=True)
    ]


def _each(points: pd.DataFrame, columns: tuple[str, ...], say: Callable[[list[str]], str]) -> list[str]:
    """What is said of these columns, put together once for each combination of them; texts come in safe."""
    said: dict[tuple[Any, ...], str] = {}
    rows = list(zip(*(points[name].tolist() for name in columns), strict=True))
    for row in set(rows):
        said[row] = say([safe("" if text is None or text != text else text) for text in row])
    return [said[row] for row in rows]


def _tensor_line(row: list[str]) -> str:
    role, key, dtype, shape = row
    return f"{role_word(role)} {key}".rstrip() + f"  ·  {dtype} {shape}"


def _state(row: dict[str, Any]) -> str:
    return f"<b>{non_finite_word(row)}</b>" + (" (expected)" if row["expected"] is True else "") + "  ·  "


def safe(text: object) -> str:
    """A name from a dump, fit for plotly, which reads some tags."""
    return escape(printable(str(text)), quote=False)


def tensor_word(role: str, key: str) -> str:
    """A tensor of a module for a reader: `input attention_mask`, `output`."""
    return f"{role_word(role)} {safe(key)}".rstrip()


def short_place(module: str, width: int = 22) -> str:
    """A module's path from its end, as much as fits: `…block.3.ff.wo`; the root is `(the model)`."""
    name = safe(module) or "(the model)"
    if len(name) <= width:
        return name
    tail = name[-(width - 1) :]
    _, dot, rest = tail.partition(".")
    return f"…{rest if dot and rest else tail}"


def non_finite_word(row: Any) -> str:
    """`nan`, `inf`, `-inf`, `±inf`, or `nan` and one of them."""
    counts = (("nan", "num_nan"), ("inf", "num_posinf"), ("-inf", "num_neginf"))
    found = [word for word, column in counts if _positive(row[column])]
    if found:
        return ", ".join(found).replace("inf, -inf", "\u00b1inf")
    flags = (("nan", "has_nan"), ("inf", "has_inf"))
    return ", ".join(word for word, column in flags if row[column] is True) or "non-finite"


def number(value: Any) -> str:
    """Three digits, as in `6.3e4`; a dash for what was not computed."""
    return "-" if value is None or value is pd.NA or math.isnan(value) else short_number(value)


def _numbers(abs_max: float, abs_min: float, headroom: float) -> str:
    said = f"abs max {number(abs_max)}  ·  abs min {number(abs_min)}"
    return said if headroom != headroom else f"{said}  ·  headroom {headroom:.1f} binades"


def _where(phase: str, recompute: Any, batch: int, call: Any, seq: int) -> str:
    again = " (recomputed)" if recompute is True else ""
    nth = f", call {call}" if _positive(call) else ""
    return f"{phase}{again}, batch {batch}{nth}, seq {seq}"


def _positive(count: Any) -> bool:
    return count is not None and count is not pd.NA and not math.isnan(count) and count > 0
