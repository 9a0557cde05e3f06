"""Streamlit, with everything that the app needs ready before it answers: the first page comes seconds sooner.

python -m viewer.server run APP [OPTIONS]     as `python -m streamlit run APP [OPTIONS]`
"""

from __future__ import annotations

import contextlib
import os
import runpy

from recorder.errors import DumpError
from viewer.serve import PATHS_VARIABLE


def main() -> None:
    """Warm up, then become Streamlit: not beside it, since plotly takes a half-imported pandas for a whole one."""
    paths = [path for path in os.environ.get(PATHS_VARIABLE, "").split(os.pathsep) if path]
    with contextlib.suppress(ImportError, DumpError):  # the page itself says what is missing
        warm_up(paths)
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)


def warm_up(paths: list[str]) -> None:
    """Read what the first page will show, if that is certain, and draw it once: plotly imports much when first used."""
    from viewer.charts import depth_figure
    from viewer.columns import Records
    from viewer.filters import Filter
    from viewer.loaded import loaded
    from viewer.picture import picture
    from viewer.runs import open_paths
    from viewer.sources import chosen_source

    depth_figure(picture(Records.empty(), Filter(), {}), {}).to_json()
    runs = open_paths(paths)
    source = chosen_source(runs[0], "") if len(runs) == 1 else None
    if source is not None:
        loaded(source)


if __name__ == "__main__":
    main()
