"""Records as columns: order, what is null, what several dumps hold together."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from recorder.schema import Role
from tests.builders import FINFO, batch_frames, frame, not_a_tensor, table_of, tensor
from viewer.columns import Records


def test_rows_come_in_order_of_seq_whatever_their_order_in_the_file() -> None:
    late, early = frame(9, "b", [tensor(Role.OUTPUT, "", 2.0)]), frame(3, "a", [tensor(Role.OUTPUT, "", 1.0)])
    records = Records(table_of([late, early]))
    assert records.whole("seq").tolist() == [3, 9]
    assert [records.texts("module")[code] for code in records.codes("module")] == ["a", "b"]


def test_what_was_not_computed_is_nan_minus_one_or_false_never_zero() -> None:
    records = Records(table_of([frame(0, "a", [not_a_tensor(Role.INPUT, "past", "NoneType")])]))
    assert math.isnan(records.numbers("abs_max")[0])
    assert records.whole("numel")[0] == -1
    assert records.codes("shape")[0] == -1
    assert not records.truth("has_nan")[0]


def test_headroom_is_in_binades_below_the_limit_of_the_dtype() -> None:
    rows = [
        tensor(Role.OUTPUT, "quarter", 65504.0 / 4),
        tensor(Role.OUTPUT, "zero", 0.0, abs_min=0.0),
        tensor(Role.OUTPUT, "int", 5.0, dtype="int64"),
    ]
    quarter, zero, whole_number = Records(table_of([frame(0, "a", rows)])).headroom(FINFO)
    assert quarter == pytest.approx(2.0)
    assert math.isnan(zero)
    assert math.isnan(whole_number)


def test_several_dumps_hold_each_record_once() -> None:
    first, second = list(batch_frames(0, 1.0)), list(batch_frames(1, 1.0))
    whole = Records(table_of([*first, *second]))
    overlapping = Records.of_many([table_of(first), table_of([*first[-5:], *second])])
    assert overlapping.table.equals(whole.table)


def test_an_empty_dump_has_empty_columns() -> None:
    records = Records(table_of([]))
    assert len(records) == 0
    assert records.used("role") == []
    assert records.headroom(FINFO).shape == (0,)
    assert records.whole("seq").dtype == np.int64


def test_columns_of_a_newer_minor_version_are_left_out() -> None:
    table = table_of([frame(0, "a", [tensor(Role.OUTPUT, "", 1.0)])])
    newer = table.append_column("skewness", pa.array([0.5]))
    assert Records(newer).table.equals(Records(table).table)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match="abs_max"):
        Records(table_of([]).drop_columns(["abs_max"]))
