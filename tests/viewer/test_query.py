"""From records and a filter to tables: what each filter lets pass, pages, frames, growth."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.schema import DUMP_SCHEMA, Phase, Role
from tests.builders import BLOCKS, FINFO, batch_frames, frame, not_a_tensor, table_of, tensor
from viewer.columns import Records
from viewer.filters import Filter, is_below, matches
from viewer.query import SORTS, choices, exported, frame_of, growth, page, select

FRAMES = [one for batch in range(3) for one in batch_frames(batch, growth=3.0**batch)]
RECORDS = Records(table_of(FRAMES))


def found(chosen: Filter) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = exported(RECORDS, chosen).to_pylist()
    return rows


def test_an_empty_filter_lets_every_record_pass() -> None:
    assert exported(RECORDS, Filter()).equals(RECORDS.table)


@pytest.mark.parametrize(
    ("chosen", "column", "allowed"),
    [
        (Filter(roles=("output",)), "role", {"output"}),
        (Filter(roles=("output", "input")), "role", {"output", "input"}),
        (Filter(dtypes=("int64",)), "dtype", {"int64"}),
        (Filter(phases=("forward",)), "phase", {"forward"}),
        (Filter(batches=(1, 2)), "batch", {1, 2}),
        (Filter(flagged=True), "flagged", {True}),
        (Filter(training=True), "training", {True}),
        (Filter(name="*.wo"), "module", {f"encoder.block.{i}.ff.wo" for i in range(BLOCKS)}),
        (Filter(name="rmsNORM"), "module_class", {"RMSNorm"}),
        (Filter(module="head"), "module", {"head"}),
    ],
    ids=str,
)
def test_a_filter_lets_pass_all_and_only_what_it_names(chosen: Filter, column: str, allowed: set[object]) -> None:
    rows = found(chosen)
    assert {row[column] for row in rows} == allowed
    assert len(rows) == sum(row[column] in allowed for row in RECORDS.table.to_pylist())


def test_a_module_holds_what_is_below_it_and_not_what_merely_begins_the_same() -> None:
    assert is_below("encoder.block.1.ff", "encoder.block.1")
    assert is_below("encoder.block.1", "encoder.block.1")
    assert not is_below("encoder.block.10", "encoder.block.1")
    assert is_below("anything", "")


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("wo", "block.0.ff.wo", True),
        ("WO", "block.0.ff.wo", True),
        ("*.wo", "block.0.ff.wo", True),
        ("*.w", "block.0.ff.wo", False),
        ("block.?.ff.*", "block.0.ff.wo", True),
        ("block.[12].ff.wo", "block.0.ff.wo", False),
        (" wo ", "block.0.ff.wo", True),
    ],
)
def test_a_name_is_a_part_or_a_whole_pattern(pattern: str, text: str, expected: bool) -> None:
    assert matches(pattern, text) is expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_name_is_too_strange_to_match(pattern: str, text: str) -> None:
    assert matches(pattern, text) in (True, False)


def test_filters_narrow_together() -> None:
    both = set(select(RECORDS, Filter(roles=("output",), name="wo")).tolist())
    alone = [set(select(RECORDS, chosen).tolist()) for chosen in (Filter(roles=("output",)), Filter(name="wo"))]
    assert both == alone[0] & alone[1]
    assert both


def test_only_what_occurs_can_be_chosen() -> None:
    said = choices(RECORDS)
    assert said.roles == ("parameter", "input", "output")
    assert said.phases == ("forward",)
    assert said.dtypes == ("float16", "int64")  # not NoneType, which is no tensor's
    assert said.batches == (0, 2)
    assert said.metrics == ("abs_max", "abs_min")
    assert not said.both_modes


def test_evaluation_can_be_chosen_when_there_was_some() -> None:
    frames = [frame(i, "a", [tensor(Role.OUTPUT, "", 1.0)], training=i == 0) for i in range(2)]
    assert choices(Records(table_of(frames))).both_modes


def test_no_records_leave_nothing_to_choose() -> None:
    said = choices(Records(table_of([])))
    assert (said.roles, said.batches) == ((), None)


def test_pages_hold_every_record_once_in_order() -> None:
    pages = [page(RECORDS, Filter(), FINFO, number, size=50) for number in range(1, 10)]
    assert pages[0].pages == 9
    assert pages[0].total == len(RECORDS) == sum(len(one.rows) for one in pages)
    assert [seq for one in pages for seq in one.rows["seq"]] == RECORDS.whole("seq").tolist()


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (-3, 1), (99, 9), (4, 4)])
def test_a_page_that_is_not_there_becomes_the_nearest(asked: int, given: int) -> None:
    assert page(RECORDS, Filter(), FINFO, asked, size=50).number == given


def test_nothing_found_is_one_empty_page() -> None:
    nothing = page(RECORDS, Filter(name="no such module"), FINFO)
    assert (nothing.number, nothing.pages, nothing.total, len(nothing.rows)) == (1, 1, 0, 0)


@pytest.mark.parametrize("sort", SORTS)
def test_sorting_goes_over_all_pages_and_puts_last_what_was_not_computed(sort: str) -> None:
    values = page(RECORDS, Filter(), FINFO, size=len(RECORDS), sort=sort).rows[sort].astype(float)
    known = values[values.notna()]
    assert known.is_monotonic_decreasing if sort == "abs_max" else known.is_monotonic_increasing
    assert values[len(known) :].isna().all()


def test_an_export_has_the_columns_of_a_dump() -> None:
    assert exported(RECORDS, Filter(name="wo")).schema.equals(DUMP_SCHEMA)


def test_a_frame_is_its_records() -> None:
    one = FRAMES[7]
    rows = frame_of(RECORDS, one.seq, FINFO)
    assert rows["role"].tolist() == [record.role.value for record in one.records]
    assert rows["headroom"].notna().all()
    assert frame_of(RECORDS, 10**9, FINFO).empty


def test_growth_is_one_row_a_batch_with_the_extremes_of_its_calls() -> None:
    calls = [
        frame(0, "a", [tensor(Role.OUTPUT, "", 2.0, abs_min=0.5)], call=0),
        frame(1, "a", [tensor(Role.OUTPUT, "", 8.0, abs_min=0.25)], call=1),
        frame(2, "a", [tensor(Role.OUTPUT, "", None, nan=3)], batch=1),
        frame(3, "a", [tensor(Role.GRADIENT, "", 99.0)], batch=1, phase=Phase.BACKWARD),
        frame(4, "ab", [tensor(Role.OUTPUT, "", 99.0)], batch=1),
    ]
    table = growth(Records(table_of(calls)), "a", "output", "", "forward")
    assert table["batch"].tolist() == [0, 1]
    assert table["abs_max"].tolist()[0] == 8.0
    assert table["abs_min"].tolist()[0] == 0.25
    assert table["abs_max"].isna().tolist() == [False, True]
    assert table["flagged"].tolist() == [False, True]


def test_growth_of_what_is_not_there_is_empty() -> None:
    assert growth(RECORDS, "no such module", "output", "", "forward").empty


def test_values_that_are_no_tensors_are_records_too() -> None:
    records = Records(table_of([frame(0, "a", [not_a_tensor(Role.INPUT, "past", "NoneType")])]))
    assert page(records, Filter(), FINFO).total == 1


def test_a_query_leaves_the_records_as_they_were() -> None:
    before = pa.table(RECORDS.table.to_pydict(), schema=DUMP_SCHEMA)
    page(RECORDS, Filter(name="wo"), FINFO, sort="headroom")
    assert RECORDS.table.equals(before)
