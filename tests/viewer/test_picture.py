"""The depth picture as a table: where points lie, and that thinning never hides what matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.dump import read_dump
from recorder.records import Frame
from recorder.schema import Role
from tests.builders import FINFO, ORIGIN_MODULE, batch_frames, frame, not_a_tensor, overflow_run, table_of, tensor
from viewer.columns import Records
from viewer.filters import Filter
from viewer.picture import MARKS, picture

HEALTHY = Records(table_of([one for batch in range(3) for one in batch_frames(batch, growth=1.0)]))


def many(values: list[float], role: Role = Role.OUTPUT) -> Records:
    return Records(table_of([frame(i, f"m.{i % 7}", [tensor(role, "", value)]) for i, value in enumerate(values)]))


def test_each_number_of_each_record_is_a_point() -> None:
    drawn = picture(HEALTHY, Filter(), FINFO)
    numbers = HEALTHY.table.column("abs_max").drop_null()
    assert (drawn.points["metric"] == "abs_max").sum() == len(numbers)
    assert drawn.shown == drawn.total == 2 * len(numbers) + len(drawn.marks)


def test_what_is_no_tensor_is_no_point() -> None:
    records = Records(table_of([frame(0, "a", [not_a_tensor(Role.INPUT, "past", "NoneType")])]))
    drawn = picture(records, Filter(), FINFO)
    assert (drawn.shown, drawn.total) == (0, 0)


def test_frames_lie_one_apart_in_execution_order_even_when_seq_has_gaps() -> None:
    records = Records(table_of([frame(seq, "a", [tensor(Role.OUTPUT, "", 1.0)]) for seq in (5, 6, 1000, 90000)]))
    drawn = picture(records, Filter(metrics=("abs_max",)), FINFO)
    assert np.diff(drawn.points["x"]).tolist() == [1.0, 1.0, 1.0]
    assert drawn.frames["seq"].tolist() == [5, 6, 1000, 90000]


@pytest.mark.parametrize("axis", ["depth", "batch"])
def test_on_an_axis_of_depths_or_batches_each_point_lies_within_its_own(axis: str) -> None:
    points = picture(HEALTHY, Filter(x=axis), FINFO).points
    expected = points["module"].astype(str).map(depth_of) if axis == "depth" else points["batch"]
    assert (points["x"].round().astype(int) == expected.astype(int)).all()


def depth_of(module: str) -> int:
    return module.count(".") + 1 if module else 0


def test_batches_say_where_each_begins_and_ends() -> None:
    drawn = picture(HEALTHY, Filter(), FINFO)
    assert drawn.batches["batch"].tolist() == [0, 1, 2]
    assert (drawn.batches["start"].to_numpy()[1:] == drawn.batches["end"].to_numpy()[:-1] + 1).all()


def test_a_non_finite_record_is_a_mark_and_its_finite_numbers_stay_points() -> None:
    records = Records(table_of([frame(0, "a", [tensor(Role.OUTPUT, "", 64992.0, posinf=2)])]))
    drawn = picture(records, Filter(), FINFO)
    assert len(drawn.marks) == 1
    assert sorted(drawn.points["metric"]) == ["abs_max", "abs_min"]


def test_the_origin_is_the_column_s_or_the_verdict_s(tmp_path: Path) -> None:
    records = Records(read_dump(next(overflow_run(tmp_path).glob("*.parquet"))).table)
    by_column = picture(records, Filter(), FINFO)
    assert by_column.marks["module"][by_column.marks["origin"]].tolist() == [ORIGIN_MODULE]
    seq = int(by_column.marks["seq"][by_column.marks["origin"]].iloc[0])
    other = picture(records, Filter(), FINFO, origin={"seq": seq - 1, "role": "input", "key": "0"})
    assert other.marks["seq"][other.marks["origin"]].tolist() == [seq - 1]


def test_no_record_in_view_is_an_empty_picture() -> None:
    drawn = picture(HEALTHY, Filter(name="no such module"), FINFO)
    assert (drawn.shown, drawn.total, len(drawn.frames), len(drawn.batches)) == (0, 0, 0, 0)


def test_thinning_says_how_many_of_how_many_and_keeps_near_its_budget() -> None:
    drawn = picture(many(list(np.linspace(1, 1000, 5000))), Filter(), FINFO, points=600)
    assert drawn.total == 10_000
    assert drawn.shown == len(drawn.points) <= 700


@given(
    st.lists(st.floats(0, 60000), min_size=300, max_size=400),
    st.sampled_from(["execution", "depth", "batch"]),
)
@settings(max_examples=25, deadline=None)
def test_thinning_keeps_the_extremes_of_every_column_of_pixels(values: list[float], axis: str) -> None:
    records = many(values)
    whole = picture(records, Filter(x=axis), FINFO, points=10**6).points
    thin = picture(records, Filter(x=axis), FINFO, points=200)
    assert thin.shown < thin.total
    for metric in ("abs_max", "abs_min"):
        _extremes_are_kept(whole[whole["metric"] == metric], thin.points[thin.points["metric"] == metric])


def _extremes_are_kept(whole: pd.DataFrame, thin: pd.DataFrame) -> None:
    assert thin["value"].max() == whole["value"].max()
    assert thin["value"].min() == whole["value"].min()
    positive = whole["value"][whole["value"] > 0]
    if len(positive):
        assert thin["value"][thin["value"] > 0].min() == positive.min()
    assert set(zip(thin["x"], thin["value"], strict=True)) <= set(zip(whole["x"], whole["value"], strict=True))


@given(st.sets(st.integers(0, 999), max_size=40))
@settings(max_examples=25, deadline=None)
def test_thinning_drops_nothing_that_is_non_finite(bad: set[int]) -> None:
    frames = [_one(i, i in bad) for i in range(1000)]
    drawn = picture(Records(table_of(frames)), Filter(), FINFO, points=200)
    assert set(drawn.marks["seq"]) == bad
    for metric in ("abs_max", "abs_min"):
        assert bad <= set(drawn.points["seq"][drawn.points["metric"] == metric])


def _one(seq: int, bad: bool) -> Frame:
    return frame(seq, "a", [tensor(Role.OUTPUT, "", 3.0, nan=int(bad))])


def test_thinning_keeps_each_role_and_the_origin() -> None:
    rows = [tensor(Role.INPUT, "0", 1.0), tensor(Role.OUTPUT, "", 1.0)]
    frames = [frame(i, "a", rows) for i in range(2000)]
    frames[1234] = frame(1234, "a", [tensor(Role.OUTPUT, "", None, nan=1)], origin=True)
    drawn = picture(Records(table_of(frames)), Filter(), FINFO, points=400)
    assert set(drawn.points["role"]) == {"input", "output"}
    assert drawn.marks["seq"][drawn.marks["origin"]].tolist() == [1234]


def test_when_nearly_all_is_non_finite_each_column_of_pixels_keeps_its_first() -> None:
    count = MARKS + 1000
    table = table_of([frame(i, "a", [tensor(Role.OUTPUT, "", None, nan=1)]) for i in range(2000)])
    seq = np.arange(count)
    big = table.take(seq % 2000).set_column(table.schema.get_field_index("seq"), table.schema.field("seq"), [seq])
    drawn = picture(Records(big), Filter(), FINFO)
    assert drawn.total == count
    assert 0 < drawn.shown <= 1000
    assert np.diff(drawn.marks["x"]).max() <= count / 1000 + 1
