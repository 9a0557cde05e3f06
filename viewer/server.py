"""Streamlit, with everything that the app needs imported before it answers: the first page comes a second sooner.

python -m viewer.server run APP [OPTIONS]     as `python -m streamlit run APP [OPTIONS]`
"""

from __future__ import annotations

import contextlib
import runpy


def main() -> None:
    """Warm up, then become Streamlit: not beside it, since plotly takes a half-imported pandas for a whole one."""
    warm_up()
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)


def warm_up() -> None:
    """Draw an empty dump once: pandas and plotly import much of themselves only when first used."""
    with contextlib.suppress(ImportError):  # the page itself says what is missing
        from recorder.dump import to_frame
        from recorder.schema import DUMP_SCHEMA, RunInfo
        from recorder.verdict import diagnose
        from viewer.charts import depth_figure
        from viewer.columns import Records
        from viewer.filters import Filter
        from viewer.picture import picture
        from viewer.tree import tree

        records, info = Records(DUMP_SCHEMA.empty_table()), RunInfo("")
        diagnose(to_frame(records.table), info)
        tree(records, info)
        depth_figure(picture(records, Filter(), info.finfo), info.finfo).to_json()


if __name__ == "__main__":
    main()
