"""Figures are functions of their tables: every point is drawn, limits and marks are where a reader looks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder.dump import read_dump
from recorder.schema import Role, RunInfo
from tests.builders import FINFO, FP16, ORIGIN_MODULE, batch_frames, frame, overflow_run, table_of, tensor
from viewer.canvas import POINTS
from viewer.charts import GL_FROM, depth_figure, growth_figure
from viewer.columns import Records
from viewer.filters import AXES, Filter
from viewer.picture import Picture, picture
from viewer.query import growth


def overflowed(tmp_path: Path) -> tuple[Records, RunInfo]:
    dump = read_dump(next(overflow_run(tmp_path).glob("*.parquet")))
    return Records(dump.table), dump.info


def plain(figure: Any) -> Any:
    return json.loads(figure.to_json())


def drawn_points(figure: Any) -> int:
    return sum(len(trace.x) for trace in figure.data if trace.meta == POINTS)


def notes(figure: Any) -> str:
    return " | ".join(str(note.text) for note in figure.layout.annotations)


def of(*rows: Any, **changes: Any) -> Picture:
    return picture(Records(table_of([frame(0, "a.b", rows, **changes)])), Filter(), FINFO)


@pytest.mark.parametrize("axis", AXES)
def test_as_many_points_are_drawn_as_the_query_says(tmp_path: Path, axis: str) -> None:
    records, info = overflowed(tmp_path)
    drawn = picture(records, Filter(x=axis), info.finfo)
    assert drawn_points(depth_figure(drawn, info.finfo, batches=info.batches)) == drawn.shown > 700


def test_the_same_table_gives_the_same_figure(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    first, second = (depth_figure(picture(records, Filter(), info.finfo), info.finfo) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_the_axis_is_logarithmic_and_the_limits_of_the_dtype_are_lines_with_names(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    figure = depth_figure(picture(records, Filter(), info.finfo), info.finfo)
    assert figure.layout.yaxis.type == "log"
    heights = {shape.y0 for shape in figure.layout.shapes if shape.type == "line" and shape.y0 == shape.y1}
    assert {FP16.max, FP16.smallest_normal, FP16.smallest_subnormal} <= heights
    for words in ("float16<br>max 6.55e4", "float16<br>min normal 6.1e-5", "float16<br>smallest 5.96e-8"):
        assert words in notes(figure)


def test_non_finite_records_are_crosses_above_the_limit_and_the_origin_is_named(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    figure = depth_figure(picture(records, Filter(), info.finfo), info.finfo)
    (bad,) = (trace for trace in figure.data if trace.name == "non-finite")
    assert min(bad.y) > FP16.max
    assert f"origin</b>  {ORIGIN_MODULE}  inf" in notes(figure)
    (expected,) = (trace for trace in figure.data if trace.name == "expected")
    assert expected.marker.color != bad.marker.color


def test_a_record_without_any_finite_number_is_still_marked() -> None:
    figure = depth_figure(of(tensor(Role.OUTPUT, "", None, nan=4)), FINFO)
    (mark,) = (trace for trace in figure.data if trace.meta == POINTS)
    assert "<b>nan</b>" in mark.hovertext[0]


def test_zeros_lie_on_a_rail_below_the_smallest_number_of_the_dtype() -> None:
    figure = depth_figure(of(tensor(Role.OUTPUT, "", 3.0, abs_min=0.0)), FINFO)
    (zeros,) = (trace for trace in figure.data if trace.meta == POINTS and trace.marker.symbol == "circle-open")
    assert 0 < zeros.y[0] < FP16.smallest_subnormal
    assert figure.layout.yaxis.ticktext[list(figure.layout.yaxis.tickvals).index(zeros.y[0])] == "0"


def test_each_role_has_its_colour_and_one_line_in_the_legend(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    figure = depth_figure(picture(records, Filter(), info.finfo), info.finfo)
    shown = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert shown == ["parameter", "input", "output", "expected", "non-finite"]
    roles = {trace.name: trace.marker.color for trace in figure.data if trace.legendgroup}
    assert len(set(roles.values())) == len(roles) == 3


def test_a_point_says_all_about_its_record_under_the_pointer() -> None:
    row = tensor(Role.INPUT, "attention_mask", 16376.0, abs_min=0.25, shape=(2, 8, 64))
    (trace, _) = depth_figure(of(row, module_class="Linear", batch=7, call=2), FINFO).data
    said = trace.hovertext[0]
    for words in ("a.b", "Linear", "input attention_mask", "float16 (2, 8, 64)", "abs max 1.64e4", "abs min 0.25"):
        assert words in said
    for words in ("headroom 2.0 binades", "forward, batch 7, call 2, seq 0"):
        assert words in said
    assert trace.customdata[0] == "0/input/attention_mask"


def test_names_from_a_dump_cannot_be_markup() -> None:
    records = Records(table_of([frame(0, "<a href='x'>m</a>", [tensor(Role.OUTPUT, "<b>", None, nan=1)], origin=True)]))
    said = json.dumps(plain(depth_figure(picture(records, Filter(), FINFO), FINFO)))
    assert "<a href" not in said
    assert "<b>\\u00b7" not in said
    assert "&lt;a href" in said


def test_many_points_are_drawn_by_webgl_and_few_as_sharp_svg() -> None:
    few = picture(Records(table_of(batch_frames(0, 1.0))), Filter(), FINFO)
    rows = [tensor(Role.OUTPUT, "", 2.0)]
    many = picture(Records(table_of([frame(i, "a", rows) for i in range(GL_FROM)])), Filter(), FINFO)
    assert {trace.type for trace in depth_figure(few, FINFO).data} == {"scatter"}
    assert {trace.type for trace in depth_figure(many, FINFO).data} == {"scattergl"}


def test_batches_are_bounded_and_numbered_in_execution_order() -> None:
    frames = [one for batch in range(3) for one in batch_frames(batch, 1.0)]
    drawn = picture(Records(table_of(frames)), Filter(), FINFO)
    figure = depth_figure(drawn, FINFO)
    edges = [shape.x0 for shape in figure.layout.shapes if shape.type == "line" and shape.x0 == shape.x1]
    assert edges == [start - 0.5 for start in drawn.batches["start"]]
    assert "batch | 0 | 1 | 2" in notes(figure)


def test_few_frames_are_named_on_the_axis() -> None:
    frames = [frame(i, f"model.encoder.block.{i}.ff.wo", [tensor(Role.OUTPUT, "", 2.0)]) for i in range(4)]
    axis = depth_figure(picture(Records(table_of(frames)), Filter(), FINFO), FINFO).layout.xaxis
    assert list(axis.ticktext) == [f"…block.{i}.ff.wo" for i in range(4)]


def test_strips_share_the_axis_when_it_counts_batches(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    by_batch = depth_figure(picture(records, Filter(x="batch"), info.finfo), info.finfo, batches=info.batches)
    strips = [trace for trace in by_batch.data if trace.name in ("loss", "learning rate", "grad norm")]
    assert len(strips) == 3
    assert {trace.xaxis or "x" for trace in by_batch.data} == {"x"}
    assert len({trace.yaxis for trace in strips}) == 3
    plain_order = depth_figure(picture(records, Filter(), info.finfo), info.finfo, batches=info.batches)
    assert not [trace for trace in plain_order.data if trace.name == "loss"]


def test_an_empty_picture_is_a_figure_too() -> None:
    nothing = picture(Records(table_of([])), Filter(), FINFO)
    assert drawn_points(depth_figure(nothing, FINFO)) == 0


def test_themes_differ_in_colours_only(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    drawn = picture(records, Filter(), info.finfo)
    light, dark = depth_figure(drawn, info.finfo), depth_figure(drawn, info.finfo, dark=True)
    assert light.layout.font.color != dark.layout.font.color
    for ours, theirs in zip(light.data, dark.data, strict=True):
        assert np.array_equal(ours.y, theirs.y)


def test_growth_shows_each_batch_and_where_it_was_non_finite(tmp_path: Path) -> None:
    records, info = overflowed(tmp_path)
    figure = growth_figure(growth(records, ORIGIN_MODULE, "output", "", "forward"), info.finfo)
    largest, smallest, bad = figure.data
    assert largest.x.tolist() == smallest.x.tolist() == [0, 1, 2]
    assert np.all(np.diff(largest.y) > 0)
    assert bad.x.tolist() == [2]
    assert bad.y[0] > FP16.max
