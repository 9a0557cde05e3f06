"""The first page: all runs, or one dump with its verdict, its facts and the depth picture."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from recorder.errors import DumpError
from recorder.schema import RunInfo, SilentWarning, TriggerKind
from viewer import markup
from viewer.chart_style import METRIC_GLYPHS, METRIC_WORDS, short_number
from viewer.charts import depth_figure
from viewer.facts import key_facts, started_text
from viewer.loaded import Loaded
from viewer.loaded import loaded as load
from viewer.pages import frame_panel, heading, session
from viewer.picture import Picture, picture
from viewer.report import build_report
from viewer.report_text import place_text
from viewer.runs import Run
from viewer.sources import Source
from viewer.state import View, narrowed
from viewer.strips import STRIPS, strips_figure, strips_of

CHART = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"], "scrollZoom": False}
_AXIS_WORDS = {"execution": "Execution order", "depth": "Module depth", "batch": "Batch"}


def show(run: Run, source: Source | None) -> None:
    """Draw the page of one run; source: what of it is looked at, None when it has no records."""
    if source is None:
        _without_records(run)
        return
    try:
        loaded = load(source)
    except DumpError as error:
        st.error(str(error), icon=":material/broken_image:")
        return
    _top(run, loaded)
    _picture(loaded)
    frame_panel.show(loaded)
    _strips(loaded)
    _more(loaded)


def kind_of(info: RunInfo, origin: object) -> tuple[str, str]:
    """(badge, kind) of a dump: bad when something was born, caution when it warns, else good."""
    trigger = info.trigger.kind.replace("_", " ") if info.trigger else ""
    if origin is not None or (info.trigger and info.trigger.kind == TriggerKind.OVERFLOW.value):
        return trigger, "bad"
    if info.warnings or (info.trigger and info.trigger.kind == TriggerKind.EXCEPTION.value):
        return trigger, "caution"
    return trigger, "good"


def _top(run: Run, loaded: Loaded) -> None:
    badge, kind = kind_of(loaded.info, loaded.origin)
    details = [f"rank {loaded.info.rank} of {loaded.info.world_size}", started_text(loaded.info)]
    heading.show(run.run_id, badge, kind, details)
    st.html(markup.verdict_box(loaded.lines, kind))
    st.html(markup.fact_row(key_facts(loaded.records, loaded.info, loaded.nodes)))


def _without_records(run: Run) -> None:
    report = build_report(run)
    st.html(markup.heading(run.run_id, "no dump", "plain", [started_text(report.info)]))
    st.html(markup.verdict_box(report.lines, "caution" if report.warnings else "good"))
    _warnings(report.warnings)


def _picture(loaded: Loaded) -> None:
    view = session.view()
    drawn = picture(loaded.records, view.filter, loaded.info.finfo, origin=loaded.origin)
    _controls(loaded, view, drawn)
    if not drawn.shown:
        st.info("No record passes these filters.", icon=":material/filter_alt:")
        return
    figure = depth_figure(
        drawn, loaded.info.finfo, dark=session.is_dark(), selected=view.frame, batches=loaded.info.batches
    )
    st.plotly_chart(figure, theme=None, config=CHART, key="picture", on_select=_point_chosen, selection_mode="points")


def _controls(loaded: Loaded, view: View, drawn: Picture) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.html(f'<div class="of-section">Depth picture</div><div class="of-caption">{_shown(drawn)}</div>')
        with st.container(horizontal=True, width="content", vertical_alignment="bottom"):
            _metric_pills(loaded, view)
            _axis_control(view)


def _shown(drawn: Picture) -> str:
    if drawn.shown == drawn.total:
        return f"{drawn.shown:,} of {drawn.total:,} points, in {len(drawn.frames):,} frames"
    return f"{drawn.shown:,} of {drawn.total:,} points: the extremes, and all that is non-finite"


def _axis_control(view: View) -> None:
    st.session_state["x"] = view.filter.x
    change = session.on_change(lambda now, x: narrowed(now, x=x or "execution"), "x")
    st.segmented_control(
        "Axis", list(_AXIS_WORDS), format_func=_AXIS_WORDS.__getitem__, key="x", on_change=change,
        label_visibility="collapsed",
    )  # fmt: skip


def _metric_pills(loaded: Loaded, view: View) -> None:
    st.session_state["metrics"] = [metric for metric in view.filter.metrics if metric in loaded.choices.metrics]
    change = session.on_change(lambda now, metrics: narrowed(now, metrics=tuple(metrics) or ("abs_max",)), "metrics")
    st.pills(
        "Metrics", loaded.choices.metrics, selection_mode="multi", format_func=_metric_word,
        key="metrics", on_change=change, label_visibility="collapsed",
    )  # fmt: skip


def _metric_word(metric: str) -> str:
    return f"{METRIC_GLYPHS[metric]} {METRIC_WORDS[metric]}"


def _point_chosen() -> None:
    points = st.session_state["picture"]["selection"]["points"]
    said = points[0].get("customdata") if points else None
    if said:
        seq, _, tensor = str(said[0] if isinstance(said, list) else said).partition("/")
        session.go(replace(session.view(), frame=int(seq), tensor=tensor))


def _strips(loaded: Loaded) -> None:
    batches = loaded.info.batches
    if not strips_of(batches) or session.view().filter.x == "batch":
        return
    if len(batches) == 1:
        said = ", ".join(f"{STRIPS[name]} {short_number(getattr(batches[0], name))}" for name in strips_of(batches))
        st.html(f'<div class="of-caption">Beside the frames of batch {batches[0].batch}: {said}</div>')
        return
    st.html('<div class="of-section">Beside the frames</div>')
    shown = session.view().filter.batches or loaded.choices.batches
    st.plotly_chart(strips_figure(batches, shown, dark=session.is_dark()), theme=None, config=CHART, key="strips")


def _more(loaded: Loaded) -> None:
    _warnings(loaded.info.warnings)
    if loaded.info.suppressed:
        rows = [(f"{s.count:,}", place_text(s.module, s.role, s.key), s.rule) for s in loaded.info.suppressed]
        with st.expander(f"Non-finite but expected ({len(rows)})"):
            st.html(markup.table(("times", "place", "rule"), rows, frozenset({0})))
    with st.expander("All facts of this dump"):
        st.html(markup.fact_list(loaded.facts))


def _warnings(warnings: tuple[SilentWarning, ...]) -> None:
    if not warnings:
        return
    rows = [(w.kind, str(w.batch), w.phase, place_text(w.module, w.role, w.key), w.text) for w in warnings]
    with st.expander(f"Warnings ({len(rows)})", expanded=len(rows) <= 8):
        st.html(markup.table(("kind", "batch", "phase", "place", "what"), rows[:500], frozenset({1})))
