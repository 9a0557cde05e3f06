"""The viewer's app: what every page shares. Streamlit runs this file anew for each interaction.

The dumps' paths come from the environment variable OVERFLIGHT_PATHS, joined as in PATH.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from viewer.chart_style import palette
from viewer.markup import style
from viewer.pages import overview, records, session, sidebar


def main() -> None:
    st.set_page_config(page_title="Overflight", page_icon=str(Path(__file__).with_name("icon.svg")), layout="wide")
    st.html(style(palette(session.is_dark())))
    pages = {
        "overview": st.Page(overview.show, title="Overview", url_path="overview", default=True),
        "records": st.Page(records.show, title="Records", url_path="records"),
    }
    page = st.navigation(list(pages.values()), position="hidden")
    opened = session.open_all()
    for error in opened.errors:
        st.error(error, icon=":material/broken_image:")
    sidebar.show(opened, pages)
    page.run()


main()
