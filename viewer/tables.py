"""Plain-text tables and numbers for a terminal; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def aligned(rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset(), indent: str = "  ") -> list[str]:
    """One line a row, columns two spaces apart; the columns whose index is in `right` end flush."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [indent + "  ".join(_padded(row, widths, right)).rstrip() for row in cells]


def _padded(row: list[str], widths: list[int], right: frozenset[int]) -> list[str]:
    return [
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def printable(text: str) -> str:
    """The text with control characters spelled out: a name from a dump must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def number(value: object) -> str:
    """Three digits, as in `6.30e+04`; empty where nothing was computed."""
    return f"{value:.2e}" if isinstance(value, float) and not math.isnan(value) else ""


def size_text(size: float) -> str:
    """Bytes for a reader: `512 B`, `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def age_text(seconds: float) -> str:
    """How long ago: `12 s`, `3 min`, `5 h`, `2 d`."""
    seconds = max(seconds, 0.0)
    for limit, unit, name in ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


def plural(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
