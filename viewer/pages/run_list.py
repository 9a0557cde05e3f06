"""A directory of runs: one line for each, the newest first."""

from __future__ import annotations

import streamlit as st

from viewer import markup
from viewer.facts import started_text
from viewer.pages import session
from viewer.runs import Run, first_overflow, kind_of
from viewer.state import View, to_params
from viewer.tables import plural, size_text

_HEADER = ("run", "started", "what happened", "where", "batch", "ranks", "dumps", "records", "warnings", "size")
_NUMBERS = frozenset({4, 5, 6, 7, 8, 9})
_MOST = 500


def show(opened: session.Opened) -> None:
    """Draw the table."""
    overflowed = sum(first_overflow(run) is not None for run in opened.runs.values())
    details = [plural(len(opened.runs), "run"), f"{overflowed} overflowed"] if opened.runs else []
    st.html(markup.heading("Runs", "", "plain", details))
    if not opened.runs:
        st.info("Nothing here can be read.", icon=":material/folder_off:")
        return
    newest = list(reversed(opened.runs.items()))[:_MOST]
    rows = [(markup.address(to_params(View(run=name))), _kind(run), _row(name, run)) for name, run in newest]
    st.html(markup.linked_table(_HEADER, rows, _NUMBERS))
    if len(opened.runs) > _MOST:
        st.caption(f"The newest {_MOST} of {len(opened.runs):,} runs.")


def _kind(run: Run) -> str:
    return "bad" if first_overflow(run) else "plain"


def _row(name: str, run: Run) -> tuple[str, ...]:
    overflow = first_overflow(run)
    shown = overflow or (run.dumps[-1] if run.dumps else None)
    info = shown.info if shown else run.info
    trigger = shown.info.trigger if shown else None
    kinds = list(dict.fromkeys((kind_of(dump) or "dump").replace("_", " ") for dump in run.dumps))
    warnings = {(w.kind, w.batch, w.module, w.role, w.key) for dump in run.dumps for w in dump.info.warnings}
    warnings |= {(w.kind, w.batch, w.module, w.role, w.key) for w in (run.info.warnings if run.info else ())}
    return (
        name,
        started_text(info) if info else "",
        ", ".join(kinds) or ("recording" if run.rings else "no dump"),
        "" if trigger is None or trigger.module is None else trigger.module or "(the model)",
        "" if trigger is None or trigger.batch is None else str(trigger.batch),
        str(len({dump.info.rank for dump in run.dumps}) or ""),
        f"{len(run.dumps):,}" if run.dumps else "",
        f"{sum(dump.num_rows for dump in run.dumps):,}" if run.dumps else "",
        f"{len(warnings):,}" if warnings else "",
        size_text(sum(dump.size for dump in run.dumps)) if run.dumps else "",
    )
