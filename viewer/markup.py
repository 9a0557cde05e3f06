"""Pieces of a page as HTML, every text from a dump escaped. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from viewer.chart_style import FONT, Palette
from viewer.facts import Fact
from viewer.tables import printable

_HERE = Path(__file__).parent
_SHEET = (_HERE / "sheet.css").read_text(encoding="utf-8")
_ICON = "data:image/svg+xml;base64," + b64encode((_HERE / "icon.svg").read_bytes()).decode()
_LEADS = re.compile(r"^([A-Z][a-z]+( [a-z]+)?:)")
_READINGS = re.compile(r"^(Very likely|Likely|Possibly|Perhaps|Try|Or|Also):")


def text(value: object) -> str:
    """Escaped, with control characters spelled out."""
    return escape(printable(str(value)))


def style(colours: Palette) -> str:
    """The style sheet of the app in one theme."""
    variables = {
        "text": colours.text,
        "muted": colours.muted,
        "line": colours.grid,
        "edge": colours.line,
        "bad": colours.bad,
        "bad-fill": colours.bad_fill,
        "caution": colours.caution,
        "caution-fill": colours.caution_fill,
        "good": colours.roles["gradient"],
        "fill": colours.neutral_fill,
        "link": colours.roles["output"],
        "icon": f'url("{_ICON}")',
    }
    said = "".join(f"--of-{name}:{value};" for name, value in variables.items())
    return f"<style>:root{{{said}--of-font:{FONT};}}{_SHEET}</style>"


def heading(title: str, badge: str, kind: str, details: Iterable[str]) -> str:
    """The title of a page. kind: bad, caution, good or plain."""
    small = "".join(f"<span>{text(detail)}</span>" for detail in details if detail)
    mark = f'<span class="of-badge of-{kind}">{text(badge)}</span>' if badge else ""
    return f'<div class="of-head"><h1>{text(title)}</h1>{mark}<div class="of-details">{small}</div></div>'


def verdict_box(lines: Sequence[str], kind: str) -> str:
    """The verdict: its first line, then what happened, and beside it what is behind it. kind: bad, caution or good."""
    first, rest = (lines[0], list(lines[1:])) if lines else ("Nothing to say.", [])
    split = next((i for i, line in enumerate(rest) if _READINGS.match(line)), len(rest))
    columns = "".join(f"<div>{''.join(map(_led, part))}</div>" for part in (rest[:split], rest[split:]) if part)
    body = f'<div class="of-columns">{columns}</div>' if columns else ""
    return f'<div class="of-verdict of-{kind}" role="status"><p class="of-first">{text(first)}</p>{body}</div>'


def _led(line: str) -> str:
    """A line with its leading words in bold: "Try: lower the learning rate"."""
    arrows = text(line).replace("-&gt;", "\u2192")
    return "<p>" + _LEADS.sub(r"<b>\1</b>", arrows) + "</p>"


def fact_row(facts: Sequence[Fact]) -> str:
    """Facts side by side: label, value, small print."""
    cells = "".join(
        f"<div><dt>{text(fact.label)}</dt><dd>{text(fact.value)}</dd>"
        f'<dd class="of-small" title="{text(fact.detail)}">{text(fact.detail)}</dd></div>'
        for fact in facts
    )
    return f'<dl class="of-facts">{cells}</dl>'


def fact_list(facts: Sequence[Fact]) -> str:
    """Facts below one another, in columns where there is room."""
    cells = "".join(f"<div><dt>{text(fact.label)}</dt><dd>{text(fact.value) or '-'}</dd></div>" for fact in facts)
    return f'<dl class="of-list">{cells}</dl>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """A plain table of texts; the columns whose index is in `numbers` end flush."""
    return _table(header, [[text(cell) for cell in row] for row in rows], numbers)


def linked_table(
    header: Sequence[str], rows: Iterable[tuple[str, str, Sequence[str]]], numbers: frozenset[int] = frozenset()
) -> str:
    """A table whose first cell leads to a page. rows: (address, kind, cells), kind as that of a heading."""
    kinds, cells = [], []
    for link, kind, row in rows:
        kinds.append(kind)
        cells.append([f'<a href="{escape(link)}" target="_self">{text(row[0])}</a>', *map(text, row[1:])])
    return _table(header, cells, numbers, kinds)


def address(params: dict[str, str], page: str = "") -> str:
    """A link to a page of the app with these query parameters."""
    return f"./{page}?{urlencode(params)}" if params else f"./{page}"


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int], kinds: Sequence[str] | None = None
) -> str:
    marks = ["of-number" if i in numbers else "" for i in range(len(header))]
    head = "".join(f'<th class="{mark}">{text(cell)}</th>' for mark, cell in zip(marks, header, strict=True))
    body = "".join(
        f'<tr class="of-row-{kind}">'
        + "".join(f'<td class="{mark}">{cell}</td>' for mark, cell in zip(marks, row, strict=True))
        + "</tr>"
        for kind, row in zip(kinds or ["plain"] * len(rows), rows, strict=True)
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="of-scroll"><table class="of-table">{inside}</table></div>'


BRAND = '<div class="of-brand">Overflight</div>'
