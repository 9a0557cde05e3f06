"""A report as one HTML file that needs nothing else: to send, to keep, to open anywhere."""

from __future__ import annotations

from html import escape

from recorder.schema import Suppressed
from viewer.columns import Records
from viewer.filters import Filter
from viewer.picture import picture
from viewer.report import Report
from viewer.report_text import frame_rows, frames_title, heading_rows, place_text, warning_text
from viewer.tables import printable

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: 4px solid #c62828; background: #fdf3f2; padding: .8rem 1rem; margin: 1rem 0; }
.verdict.fine { border-color: #2e7d32; background: #f1f8f2; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font: 13px/1.5 ui-monospace, monospace; white-space: nowrap; }
th, td { text-align: left; padding: .1rem .8rem .1rem 0; border-bottom: 1px solid #eaecef; }
""".strip()


def report_html(report: Report) -> str:
    """The whole page. The charts need plotly; without it a sentence stands in their place."""
    title = f"Overflight: {report.run.run_id}"
    body = [
        f"<h1>{_text(title)}</h1>",
        _table(heading_rows(report)),
        _verdict(report),
        "<h2>Depth picture</h2>",
        _depth_picture(report),
        *_warnings(report),
        *_suppressed(report.suppressed),
        *_frames(report),
    ]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _verdict(report: Report) -> str:
    kind = "verdict" if report.overflowed else "verdict fine"
    return f'<div class="{kind}">' + "".join(f"<div>{_text(line)}</div>" for line in report.lines) + "</div>"


def _depth_picture(report: Report) -> str:
    if report.records.empty:
        return "<p>This run wrote no dump, so there are no records to draw.</p>"
    try:
        from viewer.charts import depth_figure
    except ModuleNotFoundError:
        return '<p>The picture needs plotly: <code>pip install "overflight[view]"</code></p>'
    finfo = report.info.finfo
    figure = depth_figure(picture(Records(report.table), Filter(), finfo, origin=report.origin), finfo)
    return str(
        figure.to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True})
    )


def _warnings(report: Report) -> list[str]:
    rows = [(w.kind, str(w.batch), w.phase, warning_text(w)) for w in report.warnings]
    return ["<h2>Warnings</h2>", _table([("kind", "batch", "phase", "what"), *rows])] if rows else []


def _suppressed(suppressed: tuple[Suppressed, ...]) -> list[str]:
    rows = [(str(one.count), place_text(one.module, one.role, one.key), one.rule) for one in suppressed]
    return ["<h2>Non-finite but expected</h2>", _table([("times", "place", "rule"), *rows])] if rows else []


def _frames(report: Report) -> list[str]:
    rows = frame_rows(report)
    return [f"<h2>{_text(frames_title(report))}</h2>", _table(rows)] if rows else []


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return '<div class="scroll"><table>' + "".join(lines) + "</table></div>"


def _text(text: str) -> str:
    return escape(printable(text))
