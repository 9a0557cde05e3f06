"""The column beside every page: which run and dump, the module tree, and the filters."""

from __future__ import annotations

from typing import Any

import streamlit as st

from recorder.errors import DumpError
from viewer.chart_style import role_word
from viewer.loaded import loaded as load
from viewer.markup import BRAND
from viewer.pages import session
from viewer.pages.module_tree import module_tree
from viewer.query import Choices
from viewer.runs import Run
from viewer.sources import Source, sources
from viewer.state import View, cleared, is_filtered, moved, narrowed
from viewer.tree import Node, visible


def show(opened: session.Opened, run: Run | None, source: Source | None) -> None:
    """Draw the sidebar. run, source: what is chosen, None when nothing is."""
    with st.sidebar:
        st.html(BRAND)
        _run_picker(opened, run)
        if run is None or source is None:
            return
        _source_picker(run, source.name)
        try:
            loaded = load(source)
        except DumpError:
            return  # the page says it
        _modules(loaded.nodes)
        _filters(loaded.choices)


def _run_picker(opened: session.Opened, run: Run | None) -> None:
    if len(opened.runs) < 2 or run is None:
        return
    st.button("All runs", icon=":material/arrow_back:", type="tertiary", on_click=lambda: session.go(View()))
    names = list(reversed(opened.runs))
    _seed("run", session.view().run)
    st.selectbox("Run", names, key="run", on_change=session.on_change(lambda view, name: moved(view, name), "run"))


def _source_picker(run: Run, current: str) -> None:
    found = {source.name: source.label for source in sources(run)}
    if len(found) < 2:
        return
    _seed("dump", current)
    change = session.on_change(lambda view, name: moved(view, view.run, name), "dump")
    st.selectbox("Dump", list(found), format_func=lambda name: found.get(name, name), key="dump", on_change=change)


def _modules(nodes: list[Node]) -> None:
    chosen = session.view().filter
    _seed("name", chosen.name)
    st.text_input(
        "Modules",
        key="name",
        placeholder="name or class, * matches any",
        on_change=session.on_change(lambda view, name: narrowed(view, name=name.strip()), "name"),
    )
    module_tree(
        visible(nodes, chosen.name),
        chosen.module,
        expanded=bool(chosen.name.strip()),
        on_select=lambda module: session.go(narrowed(session.view(), module=module)),
    )


def _filters(choices: Choices) -> None:
    chosen = session.view().filter
    _pills("Phase", "phases", choices.phases, chosen.phases)
    _pills("Role", "roles", choices.roles, chosen.roles)
    _pills("Dtype", "dtypes", choices.dtypes, chosen.dtypes)
    _batches(choices, chosen.batches)
    if choices.both_modes or chosen.training is not None:
        _mode(chosen.training)
    _seed("flagged", chosen.flagged)
    change = session.on_change(lambda view, value: narrowed(view, flagged=value), "flagged")
    st.toggle("Non-finite only", key="flagged", on_change=change)
    if is_filtered(chosen):
        st.button(
            "Clear filters", icon=":material/filter_alt_off:", on_click=lambda: session.go(cleared(session.view()))
        )


def _clear() -> None:
    session.go(cleared(session.view()))


def _pills(label: str, field: str, options: tuple[str, ...], current: tuple[str, ...]) -> None:
    """Several of a few; nothing is drawn when there is nothing to choose."""
    known = tuple(dict.fromkeys((*options, *current)))
    if len(known) < 2:
        return
    _seed(field, list(current))
    change = session.on_change(lambda view, values: narrowed(view, **{field: tuple(values)}), field)
    st.pills(label, known, selection_mode="multi", format_func=role_word, key=field, on_change=change)


def _batches(choices: Choices, current: tuple[int, int] | None) -> None:
    if choices.batches is None or choices.batches[0] == choices.batches[1]:
        return
    first, last = choices.batches
    low, high = current or choices.batches
    _seed("batches", (min(max(low, first), last), min(max(high, first), last)))
    st.slider("Batches", first, last, key="batches", on_change=_batches_changed, args=(choices.batches,))


def _batches_changed(whole: tuple[int, int]) -> None:
    value = tuple(st.session_state["batches"])
    session.go(narrowed(session.view(), batches=None if value == whole else value))


def _mode(current: bool | None) -> None:
    words = {"training": True, "evaluation": False}
    _seed("mode", next((word for word, value in words.items() if value is current), None))
    change = session.on_change(lambda view, word: narrowed(view, training=words.get(word)), "mode")
    st.segmented_control("Mode", list(words), key="mode", on_change=change)


def _seed(key: str, value: Any) -> None:
    """The URL decides what a widget says."""
    st.session_state[key] = value
