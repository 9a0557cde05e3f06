"""The viewer's app: what every page shares. Streamlit runs this file anew for each interaction.

The dumps' paths come from the environment variable OVERFLIGHT_PATHS, joined as in PATH.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from recorder.errors import DumpError
from viewer.chart_style import palette
from viewer.loaded import is_new, loaded
from viewer.markup import style
from viewer.pages import overview, records, run_list, session, sidebar
from viewer.sources import Source


def show() -> None:
    """Draw what the URL says."""
    st.html(style(palette(session.is_dark())))
    opened = session.open_all()
    for error in opened.errors:
        st.error(error, icon=":material/broken_image:")
    run, source = session.chosen(opened)
    if source is not None and is_new(source):
        _read(source)
    sidebar.show(opened, run, source)
    if run is None:
        run_list.show(opened)
    elif session.view().tab == "records":
        records.show(run, source)
    else:
        overview.show(run, source)


def _read(source: Source) -> None:
    """Read the dump, while the browser fetches what draws charts, for an empty one."""
    waiting = st.empty()
    waiting.plotly_chart(go.Figure(layout={"height": 10}), theme=None, config={"displayModeBar": False})
    with st.spinner("Reading the dump ..."), contextlib.suppress(DumpError):  # the page says what is wrong with it
        loaded(source)
    waiting.empty()


st.set_page_config("Overflight", str(Path(__file__).with_name("icon.svg")), layout="wide")
# One page with everything in its query: Streamlit would look for its own files below any other path, in vain at first.
st.navigation([st.Page(show, title="Overflight")], position="hidden").run()
