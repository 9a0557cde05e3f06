"""What the pages share: the view in the URL, and what has been read from disk, kept while the files stay the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from recorder.dump import to_frame
from recorder.errors import DumpError
from recorder.schema import RunInfo
from recorder.verdict import diagnose
from viewer.columns import Records
from viewer.facts import Fact, all_facts
from viewer.query import Choices, choices
from viewer.runs import RingFile, Run, open_paths
from viewer.serve import PATHS_VARIABLE
from viewer.sources import Source, chosen_source, load_source, run_names
from viewer.state import View, from_params, to_params
from viewer.tree import Node, tree

_LOOK_AGAIN = 5.0
"""Seconds after which directories are looked through again for new dumps."""


Stamp = tuple[tuple[str, float, int], ...]
_read: set[Stamp] = set()


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


@dataclass(frozen=True)
class Loaded:
    """One source, read and judged. origin: where it was born, as the verdict says; None when nothing was."""

    records: Records
    info: RunInfo
    lines: tuple[str, ...]
    origin: dict[str, Any] | None
    nodes: list[Node]
    choices: Choices
    facts: list[Fact]


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


def loaded(source: Source) -> Loaded:
    """The records of a source.

    Raises:
        DumpError: a file of it is not readable.
    """
    return _load(_stamp(source), source)


def is_new(source: Source) -> bool:
    """Whether its records are still to be read, which may take a while."""
    return _stamp(source) not in _read


def _stamp(source: Source) -> Stamp:
    """Changes with the files; and with time for a ring, whose file may be written to without a new date."""
    live = any(isinstance(file, RingFile) for file in source.files)
    return (*source.stamp, ("", time.time() // _LOOK_AGAIN, 0)) if live else source.stamp


@st.cache_resource(ttl=_LOOK_AGAIN, show_spinner=False, max_entries=4)
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


@st.cache_resource(show_spinner="Reading the dump …", max_entries=2)
def _load(stamp: Stamp, _source: Source) -> Loaded:
    _read.add(stamp)
    records, info = load_source(_source)
    verdict = diagnose(to_frame(records.table), info)
    born_in = verdict.origin["module"] if verdict.origin else None
    nodes = tree(records, info, born_in)
    return Loaded(records, info, verdict.lines, verdict.origin, nodes, choices(records), all_facts(records, info))
