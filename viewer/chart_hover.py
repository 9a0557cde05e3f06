"""The words of a chart: what a point says under the pointer, and names short enough for a label."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import pandas as pd

from viewer.chart_style import role_word, short_number
from viewer.tables import printable


def hover_texts(points: pd.DataFrame) -> list[str]:
    """One text a row: full module path, class, tensor, place, numbers, dtype, shape and headroom."""
    return [_hover(row) for row in points.to_dict("records")]


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
    """`nan`, `inf`, `-inf`, or several of them."""
    counts = (("nan", "num_nan"), ("inf", "num_posinf"), ("-inf", "num_neginf"))
    found = [word for word, column in counts if _positive(row[column])]
    if found:
        return " + ".join(found)
    flags = (("nan", "has_nan"), ("inf", "has_inf"))
    return " + ".join(word for word, column in flags if row[column] is True) or "non-finite"


def number(value: Any) -> str:
    """Three digits, as in `6.3e4`; a dash for what was not computed."""
    return "-" if value is None or value is pd.NA or math.isnan(value) else short_number(value)


def _hover(row: Any) -> str:
    name = safe(row["module"]) or "(the model)"
    lines = [
        f"<b>{name}</b>  {safe(row['module_class'])}",
        f"{role_word(row['role'])} {safe(row['key'])}".rstrip()
        + f"  ·  {safe(row['dtype'])} {safe(_text(row['shape']))}",
        _numbers(row),
        _where(row),
    ]
    return "<br>".join(lines)


def _numbers(row: Any) -> str:
    parts = [f"abs max {number(row['abs_max'])}", f"abs min {number(row['abs_min'])}"]
    if not math.isnan(row["headroom"]):
        parts.append(f"headroom {row['headroom']:.1f} binades")
    if row["flagged"] is True:
        parts.insert(0, f"<b>{non_finite_word(row)}</b>" + (" (expected)" if row["expected"] is True else ""))
    return "  ·  ".join(parts)


def _where(row: Any) -> str:
    phase = f"{row['phase']}" + (" (recomputed)" if row["recompute"] is True else "")
    call = f", call {row['call']}" if _positive(row["call"]) else ""
    return f"{phase}, batch {row['batch']}{call}, seq {row['seq']}"


def _positive(count: Any) -> bool:
    return count is not None and count is not pd.NA and not math.isnan(count) and count > 0


def _text(value: Any) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)
