"""What the pages share: the view in the URL, and what has been read from disk, kept while the files stay the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from recorder.errors import DumpError
from viewer.loaded import LOOK_AGAIN
from viewer.runs import Run, open_paths
from viewer.serve import PATHS_VARIABLE
from viewer.sources import Source, chosen_source, run_names
from viewer.state import View, from_params, to_params


@dataclass(frozen=True)
class Opened:
    """What the paths lead to. runs: by name, the newest last. errors: a sentence for each path that can't be read."""

    runs: dict[str, Run]
    errors: tuple[str, ...]

    def name(self, chosen: str) -> str | None:
        """The name of the run that is chosen: of the only one, or the chosen one."""
        if len(self.runs) == 1:
            return next(iter(self.runs))
        return chosen if chosen in self.runs else None


def view() -> View:
    """What the URL says."""
    return from_params(st.query_params.to_dict())


def go(changed: View) -> None:
    """Put a view into the URL; the page that is drawn next shows it."""
    st.query_params.from_dict(to_params(changed))


def on_change(change: Callable[[View, Any], View], key: str) -> Callable[[], None]:
    """A callback for the widget with that key: brings its value into the view."""
    return lambda: go(change(view(), st.session_state[key]))


def is_dark() -> bool:
    return st.context.theme.type == "dark"


def open_all() -> Opened:
    """All runs below the paths, and what could not be read."""
    paths = [path for path in os.environ.get(PATHS_VARIABLE, "").split(os.pathsep) if path]
    if not paths:
        return Opened({}, (f"No path to look at: the environment variable {PATHS_VARIABLE} is empty.",))
    return _open(tuple(paths))


def chosen(opened: Opened) -> tuple[Run | None, Source | None]:
    """The run and the source that the view is about."""
    said = view()
    name = opened.name(said.run)
    if name is None:
        return None, None
    return opened.runs[name], chosen_source(opened.runs[name], said.source)


@st.cache_resource(ttl=LOOK_AGAIN, show_spinner=False, max_entries=4)
def _open(paths: tuple[str, ...]) -> Opened:
    runs: list[Run] = []
    errors: list[str] = []
    for path in paths:
        try:
            found = open_paths([Path(path)])
        except DumpError as error:
            errors.append(str(error))
            continue
        runs += [run for run in found if run.readable]
        errors += [f"{file}: {sentence}" for run in found for file, sentence in run.problems]
    return Opened(run_names(runs), tuple(errors))
