"""The first line of a run's pages: its name, what became of it, and the way to its other page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import streamlit as st

from viewer import markup
from viewer.pages import session
from viewer.state import TABS


def show(title: str, badge: str, kind: str, details: Iterable[str]) -> None:
    """Draw the line. kind: bad, caution, good or plain."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.html(markup.heading(title, badge, kind, details), width="content")
        st.session_state["tab"] = session.view().tab
        change = session.on_change(lambda now, tab: replace(now, tab=tab or now.tab), "tab")
        st.segmented_control(
            "View", TABS, format_func=str.capitalize, key="tab", on_change=change, label_visibility="collapsed"
        )
