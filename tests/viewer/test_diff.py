"""Comparing records: what is matched with what, and what counts as a difference."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from recorder.dump import to_frame
from recorder.records import Frame
from recorder.schema import Role
from tests.builders import batch_frames, frame, not_a_tensor, table_of, tensor
from viewer.diff import compare, difference_text


def records(frames: Iterable[Frame], rank: int = 0) -> pd.DataFrame:
    return to_frame(table_of(frames, rank))


def one(seq: int, value: float | None, module: str = "fc", **changes: object) -> Frame:
    return frame(seq, module, [tensor(Role.OUTPUT, "", value, nan=int(value is None))], **changes)


def test_equal_records_do_not_differ_though_their_frames_are_numbered_otherwise() -> None:
    a = list(batch_frames(0, 1.0))
    b = [item._replace(seq=item.seq + 1000, t_ns=0, step=9) for item in a]
    found = compare(records(a), records(b))
    assert not found.differs
    assert found.common == sum(len(item.records) for item in a)


def test_numbers_that_were_not_computed_are_equal_to_each_other() -> None:
    silent = [frame(1, "fc", [not_a_tensor(Role.INPUT, "past", "NoneType")]), one(2, None)]
    assert not compare(records(silent), records(silent)).differs


def test_a_number_against_none_is_a_difference() -> None:
    found = compare(records([one(1, 3.0)]), records([one(1, None)]))
    assert found.differs
    assert "nan" in difference_text(found, "a", "b")


def test_a_tensor_where_nothing_was_is_a_difference() -> None:
    found = compare(
        records([frame(1, "fc", [not_a_tensor(Role.INPUT, "past", "NoneType")])]),
        records([frame(1, "fc", [tensor(Role.INPUT, "past", 2.0)])]),
    )
    assert "NoneType / float16" in difference_text(found, "a", "b")


def test_another_dtype_is_a_difference_and_both_are_named() -> None:
    half = [frame(1, "fc", [tensor(Role.OUTPUT, "", 1.0, dtype="float16")])]
    brain = [frame(1, "fc", [tensor(Role.OUTPUT, "", 1.0, dtype="bfloat16")])]
    assert "dtype float16 / bfloat16" in difference_text(compare(records(half), records(brain)), "a", "b")


def test_a_place_that_comes_twice_is_matched_in_order() -> None:
    a = [one(1, 1.0), one(2, 2.0)]
    b = [one(1, 1.0), one(2, 5.0)]
    found = compare(records(a), records(b))
    assert found.changed["abs_max_a"].tolist() == [2.0]
    assert found.changed["abs_max_b"].tolist() == [5.0]


def test_two_ranks_of_one_run_are_compared_with_each_other() -> None:
    found = compare(records([one(1, 1.0)], rank=0), records([one(1, 1.0)], rank=3))
    assert found.common == 1
    assert not found.differs


def test_ranks_are_kept_apart_when_a_side_has_several() -> None:
    both = pd.concat([records([one(1, 1.0)], rank=0), records([one(1, 2.0)], rank=1)], ignore_index=True)
    assert not compare(both, both).differs
    assert compare(both, records([one(1, 1.0)], rank=0)).only_a["rank"].tolist() == [1]


def test_what_turned_non_finite_comes_before_what_merely_grew() -> None:
    a = [one(1, 1.0, "grew"), one(2, 1.0, "turned"), one(3, 1.0, "grew_more")]
    b = [one(1, 2.0, "grew"), one(2, None, "turned"), one(3, 900.0, "grew_more")]
    said = difference_text(compare(records(a), records(b)), "a", "b")
    largest = said.split("Largest changes")[1]
    assert largest.index("turned") < largest.index("grew_more") < largest.index("grew ")
    first = said.split("First divergence")[1].splitlines()[2]
    assert "grew" in first


def test_a_ratio_beyond_floats_is_a_power_of_two() -> None:
    a = [frame(1, "fc", [tensor(Role.OUTPUT, "", 5e-324, dtype="float64")])]
    b = [frame(1, "fc", [tensor(Role.OUTPUT, "", 1.7e308, dtype="float64")])]
    assert "2^2098" in difference_text(compare(records(a), records(b)), "a", "b")


def test_records_that_one_side_lacks_are_counted_and_located() -> None:
    found = compare(records([one(1, 1.0), one(2, 1.0, "extra", batch=4)]), records([one(1, 1.0)]))
    assert "1 record only in A: batch 4, first forward output of extra in batch 4" in difference_text(found, "a", "b")
