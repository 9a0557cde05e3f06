"""The frame that was clicked: its records, and how one of its tensors grew over the batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from viewer import markup
from viewer.chart_hover import non_finite_word, number, tensor_word
from viewer.charts import growth_figure
from viewer.loaded import Loaded
from viewer.pages import session
from viewer.query import frame_of, growth
from viewer.state import View, narrowed, tensor_of

_HEADER = ("tensor", "dtype", "shape", "abs min", "abs max", "headroom", "")
_NUMBERS = frozenset({3, 4, 5})


def show(loaded: Loaded) -> None:
    """Draw the panel, if a frame is chosen."""
    view = session.view()
    if view.frame is None:
        st.html('<div class="of-caption">Click a point to look into its frame.</div>')
        return
    records = frame_of(loaded.records, view.frame, loaded.info.finfo)
    if records.empty:
        st.info(f"This dump has no frame {view.frame}.")
        return
    with st.container(border=True):
        _title(records, view)
        left, right = st.columns([5, 6])
        with left:
            st.html(markup.table(_HEADER, [_row(row) for row in records.to_dict("records")], _NUMBERS))
        with right:
            _growth(loaded, records, view)


def _title(records: pd.DataFrame, view: View) -> None:
    first = records.iloc[0]
    place = f"{first['phase']}, batch {first['batch']}, call {first['call']}, seq {first['seq']}"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="top"):
        name = markup.text(first["module"] or "(the model)")
        kind = markup.text(f"{first['module_class']} · {place}")
        st.html(f'<div class="of-section">{name}</div><div class="of-caption">{kind}</div>')
        with st.container(horizontal=True, width="content"):
            only = narrowed(view, module=str(first["module"]))
            close = replace(view, frame=None, tensor="")
            _button("Only this module", "filter_alt", only)
            _button("Close", "close", close)


def _button(label: str, icon: str, leads_to: View) -> None:
    st.button(label, type="tertiary", icon=f":material/{icon}:", on_click=lambda: session.go(leads_to))


def _row(row: dict[Any, Any]) -> tuple[str, ...]:
    headroom = float(str(row["headroom"]))
    state = ""
    if row["flagged"] is True:
        state = non_finite_word(row) + (" expected" if row["expected"] is True else "")
    return (
        tensor_word(str(row["role"]), str(row["key"])),
        str(row["dtype"]),
        "" if row["shape"] != row["shape"] or row["shape"] is None else str(row["shape"]),
        number(row["abs_min"]),
        number(row["abs_max"]),
        "" if headroom != headroom else f"{headroom:.1f}",
        state,
    )


def _growth(loaded: Loaded, records: pd.DataFrame, view: View) -> None:
    tensors = [f"{role}/{key}" for role, key in zip(records["role"], records["key"], strict=True)]
    current = view.tensor if view.tensor in tensors else tensors[-1]
    st.session_state["tensor"] = current
    change = session.on_change(lambda now, tensor: replace(now, tensor=tensor), "tensor")
    st.selectbox("Over the batches", tensors, format_func=_words, key="tensor", on_change=change)
    role, key = tensor_of(current) or ("", "")
    first = records.iloc[0]
    table = growth(loaded.records, str(first["module"]), role, key, str(first["phase"]))
    figure = growth_figure(table, loaded.info.finfo, dark=session.is_dark())
    st.plotly_chart(figure, theme=None, config={"displayModeBar": False}, key="growth")


def _words(tensor: str) -> str:
    return tensor_word(*(tensor_of(tensor) or ("", "")))
