"""The records in view as a table, page by page, and their export."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import streamlit as st

from recorder.errors import DumpError
from recorder.schema import RUN_INFO_KEY, SCHEMA_VERSION, SCHEMA_VERSION_KEY
from viewer.chart_hover import non_finite_word
from viewer.chart_style import palette
from viewer.loaded import Loaded
from viewer.loaded import loaded as load
from viewer.pages import heading, session
from viewer.query import SORTS, Page, exported, page
from viewer.runs import Run
from viewer.sources import Source
from viewer.state import View
from viewer.tables import plural

_SORT_WORDS = {
    "seq": "Execution order",
    "abs_max": "Largest abs max",
    "abs_min": "Smallest abs min",
    "headroom": "Least headroom",
}
_ORDER = (
    "seq", "batch", "phase", "module", "module_class", "role", "key", "state", "abs_max", "abs_min", "headroom",
    "dtype", "shape", "step", "call", "mean", "rms", "num_nan", "num_posinf", "num_neginf", "num_zero", "num_subnormal",
    "numel", "depth", "training", "recompute", "device",
)  # fmt: skip
_ROW = 30
_VISIBLE = 22
_WIDTHS = {"module": 230, "module_class": 120, "role": 92, "key": 70, "state": 84, "dtype": 75, "shape": 110}


def show(run: Run, source: Source | None) -> None:
    """Draw the page of one run; source: what of it is looked at, None when it has no records."""
    if source is None:
        heading.show(run.run_id, "no dump", "plain", [])
        st.info("This run has written no dump yet, so it has no records.", icon=":material/table_rows:")
        return
    try:
        loaded = load(source)
    except DumpError as error:
        st.error(str(error), icon=":material/broken_image:")
        return
    view = session.view()
    found = page(loaded.records, view.filter, loaded.info.finfo, view.page, sort=view.sort)
    heading.show(run.run_id, "", "plain", [_extent(found, len(loaded.records))])
    _bar(run, loaded, view, found)
    _table(found)


def _extent(found: Page, total: int) -> str:
    return f"{found.total:,} of {plural(total, 'record')}"


def _bar(run: Run, loaded: Loaded, view: View, found: Page) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        _sort(view)
        _pager(found)
        with st.container(horizontal=True, width="content"):
            for kind, mime, write in (("CSV", "text/csv", _csv), ("Parquet", "application/octet-stream", _parquet)):
                st.download_button(
                    kind,
                    data=_deferred(write, loaded, view),
                    file_name=f"{run.run_id}.{kind.lower()}",
                    mime=mime,
                    icon=":material/download:",
                    on_click="ignore",
                    help=f"All {found.total:,} records in view",
                )


def _sort(view: View) -> None:
    st.session_state["sort"] = view.sort
    change = session.on_change(lambda now, sort: replace(now, sort=sort, page=1), "sort")
    st.selectbox("Order", SORTS, format_func=_SORT_WORDS.__getitem__, key="sort", on_change=change, width=210)


def _pager(found: Page) -> None:
    with st.container(horizontal=True, width="content", vertical_alignment="bottom"):
        _step("Previous", ":material/chevron_left:", found.number - 1, found.number > 1)
        st.session_state["page"] = found.number
        change = session.on_change(lambda now, number: replace(now, page=int(number)), "page")
        label = f"Page (of {found.pages:,})"
        st.number_input(label, 1, found.pages, step=1, key="page", on_change=change, width=150)
        _step("Next", ":material/chevron_right:", found.number + 1, found.number < found.pages)


def _step(label: str, icon: str, number: int, possible: bool) -> None:
    change = lambda: session.go(replace(session.view(), page=number))  # noqa: E731
    st.button(label, icon=icon, disabled=not possible, on_click=change)


def _table(found: Page) -> None:
    if found.rows.empty:
        st.info("No record passes these filters.", icon=":material/filter_alt:")
        return
    rows = found.rows.assign(state=[_state(row) for row in found.rows.to_dict("records")])
    rows = rows[[name for name in _ORDER if name in rows and not rows[name].isna().all()]]
    rows = rows.astype({name: object for name in rows if isinstance(rows[name].dtype, pd.CategoricalDtype)})
    st.dataframe(
        rows.style.apply(_row_style, axis=1, colour=palette(session.is_dark()).bad),
        hide_index=True,
        row_height=_ROW,
        height=_ROW * (min(len(rows), _VISIBLE) + 1) + 8,
        column_config=_columns(rows),
    )


def _row_style(row: pd.Series[Any], colour: str) -> list[str]:
    """What is non-finite and not expected stands out."""
    bad = row["state"] and "expected" not in row["state"]
    return [f"color: {colour}; font-weight: 600" if bad else ""] * len(row)


def _columns(rows: pd.DataFrame) -> dict[str, Any]:
    floats = st.column_config.NumberColumn
    config: dict[str, Any] = {name: floats(format="%.3e") for name in ("abs_max", "abs_min", "mean", "rms")}
    config["headroom"] = floats(format="%.1f", help="log2 of the dtype's largest number over abs max")
    config |= {name: st.column_config.TextColumn(width=width) for name, width in _WIDTHS.items()}
    return {name: value for name, value in config.items() if name in rows}


def _state(row: dict[Any, Any]) -> str:
    if row["origin"] is True:
        return f"{non_finite_word(row)}, origin"
    if row["flagged"] is True:
        return non_finite_word(row) + (", expected" if row["expected"] is True else "")
    return ""


def _deferred(write: Callable[[Loaded, View], bytes], loaded: Loaded, view: View) -> Callable[[], bytes]:
    """The file is made when somebody asks for it, not each time the page is drawn."""
    return lambda: write(loaded, view)


def _csv(loaded: Loaded, view: View) -> bytes:
    file = io.BytesIO()
    table = exported(loaded.records, view.filter)
    plain = pa.schema([(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema])
    pyarrow.csv.write_csv(table.cast(plain), file)
    return file.getvalue()


def _parquet(loaded: Loaded, view: View) -> bytes:
    """A dump again: it opens wherever the whole one does."""
    metadata = {SCHEMA_VERSION_KEY: SCHEMA_VERSION.encode(), RUN_INFO_KEY: loaded.info.to_json().encode()}
    file = io.BytesIO()
    pq.write_table(exported(loaded.records, view.filter).replace_schema_metadata(metadata), file, compression="zstd")
    return file.getvalue()
