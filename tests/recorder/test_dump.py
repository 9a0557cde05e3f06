"""A dump is complete in itself, appears whole or not at all, reads alike everywhere, and is refused when it is bad."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from recorder.dump import (
    ROW_GROUP_ROWS,
    DumpWriter,
    dump_name,
    read_dump,
    read_info,
    read_table,
    to_frame,
    write_dump,
)
from recorder.errors import DumpError, RecorderError
from recorder.records import Frame, Statistics
from recorder.ring import Ring
from recorder.schema import DUMP_SCHEMA, RUN_INFO_KEY, SCHEMA_VERSION_KEY, Role, RunInfo
from tests.builders import frame, not_a_tensor, overflow_run, run_info, table_of, tensor
from tests.recorder.storage_cases import frame_lists

REPOSITORY = Path(__file__).parents[2]


def some_frames() -> list[Frame]:
    """Healthy, broken, expected, unmeasured and fully measured tensors, 60 rows."""
    full = tensor(Role.OUTPUT, "full", 1.0)
    full = full._replace(statistics=Statistics(1e-7, 0.1, -0.05, 1 / 3, 0, 0, 0, 2**53 + 1, 7))
    records = [
        tensor(Role.PARAMETER, "weight", 65504.0),
        tensor(Role.INPUT, "mask", None, neginf=2**53 + 1, expected=True),
        not_a_tensor(Role.INPUT, "past", "NoneType"),
        tensor(Role.OUTPUT, "", None, nan=3),
        tensor(Role.OUTPUT, "1", 0.1, posinf=1),
        full,
    ]
    return [frame(seq, f"encoder.{seq % 3}", records, batch=seq // 3, origin=seq == 4) for seq in range(10)]


@pytest.fixture
def table() -> pa.Table:
    return table_of(some_frames())


@pytest.fixture
def dump(tmp_path: Path, table: pa.Table) -> Path:
    return write_dump(tmp_path / "overflow-rank0000.parquet", table, run_info())


# what goes in comes out


@settings(deadline=None)
@given(frame_lists())
def test_frames_come_back_from_ring_and_dump_as_they_were(frames: list[Frame]) -> None:
    with TemporaryDirectory() as directory:
        ring = Ring.create(Path(directory), run_id="r", rank=0, capacity=64)
        ring.append_many(frames)
        found = read_dump(write_dump(Path(directory, "d.parquet"), ring.table(), RunInfo("r")))
    assert found.table.to_pylist() == table_of(frames).to_pylist()
    assert found.table.schema.equals(DUMP_SCHEMA)


def test_the_metadata_comes_back_with_and_without_the_records(dump: Path) -> None:
    assert read_info(dump) == read_dump(dump).info == run_info()


def test_rows_written_in_parts_are_one_dump(tmp_path: Path, table: pa.Table) -> None:
    writer = DumpWriter(tmp_path / "d.parquet")
    for start in range(0, 60, 20):
        writer.write(table.slice(start, 20))
    assert read_table(writer.close(run_info())).equals(table)


def test_a_dump_without_records_is_a_dump(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "d.parquet", table_of([]), run_info())
    assert read_dump(path).table.num_rows == 0
    assert list(to_frame(read_table(path)).columns) == DUMP_SCHEMA.names


def test_columns_and_rows_can_be_chosen(dump: Path) -> None:
    found = read_table(dump, columns=["seq", "key"], filters=[("flagged", "=", True), ("seq", "<", 2)])
    assert found.to_pydict() == {"seq": [0, 0, 0, 1, 1, 1], "key": ["mask", "", "1"] * 2}


def test_the_directory_a_dump_lies_in_adds_no_column(dump: Path) -> None:
    moved = dump.parent / "batch=7" / "d.parquet"
    moved.parent.mkdir()
    dump.rename(moved)
    assert read_table(moved, filters=[("seq", "=", 0)]).column("batch").to_pylist() == [0] * 6


@pytest.mark.parametrize(
    ("kind", "batch", "rank", "name"),
    [
        ("overflow", 12, 0, "overflow-batch000012-rank0000.parquet"),
        ("traced_batch", 3, 11, "trace-batch000003-rank0011.parquet"),
        ("exception", 1_234_567, 0, "exception-batch1234567-rank0000.parquet"),
        ("manual", None, 2, "manual-rank0002.parquet"),
    ],
)
def test_the_name_says_why_when_and_where(kind: str, batch: int | None, rank: int, name: str) -> None:
    assert dump_name(kind, batch, rank) == name


# it reads well with nothing of ours


def by_pandas(path: Path) -> list[dict[str, Any]]:
    found = pd.read_parquet(path, dtype_backend="numpy_nullable").astype(object)
    rows = found.where(found.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def by_duckdb(path: Path) -> list[dict[str, Any]]:
    found = duckdb.read_parquet(str(path))
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def by_polars(path: Path) -> list[dict[str, Any]]:
    return pl.read_parquet(path).to_dicts()


@pytest.mark.parametrize("reader", [by_pandas, by_duckdb, by_polars])
def test_every_reader_sees_the_same_values_and_nulls(
    dump: Path, table: pa.Table, reader: Callable[[Path], list[dict[str, Any]]]
) -> None:
    assert reader(dump) == table.to_pylist()


def test_pandas_alone_sees_the_same_floats(dump: Path, table: pa.Table) -> None:
    found = pd.read_parquet(dump)
    for name in ("abs_min", "abs_max", "mean", "rms"):
        values = found[name].astype(object)
        assert values.where(values.notna(), None).tolist() == table.column(name).to_pylist()


def test_sql_finds_the_metadata(dump: Path) -> None:
    query = f"select value from parquet_kv_metadata('{dump}') where key = 'overflight.run'"
    ((value,),) = duckdb.execute(query).fetchall()
    assert RunInfo.from_json(value) == run_info()


def test_a_data_frame_keeps_integers_exact_and_nulls_null(dump: Path) -> None:
    found = to_frame(read_table(dump))
    assert found["num_zero"].dropna().unique().tolist() == [2**53 + 1]
    assert found["num_neginf"].max() == 2**53 + 1
    assert found["numel"].isna().sum() == found["has_nan"].isna().sum() == 10
    assert found["abs_max"].isna().sum() == 30
    assert str(found["module"].dtype) == "category"
    assert found[found["flagged"]].shape[0] == 30
    assert found["seq"].dtype == "int64"


def test_it_is_written_as_the_format_says(tmp_path: Path, table: pa.Table) -> None:
    large = pa.concat_tables([table] * (2 * ROW_GROUP_ROWS // table.num_rows + 1))
    found = pq.read_metadata(write_dump(tmp_path / "d.parquet", large, run_info()))
    groups = [found.row_group(i) for i in range(found.num_row_groups)]
    columns = {groups[0].column(i).path_in_schema: groups[0].column(i) for i in range(found.num_columns)}
    assert [group.num_rows for group in groups[:-1]] == [ROW_GROUP_ROWS] * 2
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["abs_max"].encodings
    assert columns["module"].has_dictionary_page
    assert not columns["abs_max"].has_dictionary_page


# it appears whole or not at all


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_dump_cannot_be_seen_before_it_is_closed(tmp_path: Path, table: pa.Table) -> None:
    writer = DumpWriter(tmp_path / "d.parquet")
    writer.write(table)
    assert all(name.startswith(".") for name in names(tmp_path))
    writer.close(run_info())
    assert names(tmp_path) == ["d.parquet"]


def test_a_dump_that_is_given_up_leaves_nothing(tmp_path: Path, table: pa.Table) -> None:
    writer = DumpWriter(tmp_path / "d.parquet")
    writer.write(table)
    writer.abandon()
    assert names(tmp_path) == []


def test_a_dump_is_never_written_over(tmp_path: Path, table: pa.Table) -> None:
    (tmp_path / "d.parquet").write_text("precious")
    paths = [write_dump(tmp_path / "d.parquet", table, run_info()).name for _ in range(2)]
    assert paths == ["d-2.parquet", "d-3.parquet"]
    assert (tmp_path / "d.parquet").read_text() == "precious"


def test_two_writers_of_one_name_do_not_meet(tmp_path: Path, table: pa.Table) -> None:
    writers = [DumpWriter(tmp_path / "d.parquet") for _ in range(2)]
    for number, writer in enumerate(writers):
        writer.write(table.slice(0, number + 1))
    found = [read_table(writer.close(run_info())).num_rows for writer in writers]
    assert found == [1, 2]


def test_a_directory_that_is_not_there_is_an_error_that_names_the_dump(tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "missing" / "d.parquet"
    with pytest.raises(RecorderError, match=r"missing/d\.parquet: cannot write the dump: No such file"):
        write_dump(path, table, run_info())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("limit", [100, 2_000, 200_000])
def test_a_disk_without_room_is_an_error_that_names_the_dump_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    """The limits let it fail as it is begun, at its metadata, and at its rows."""
    script = """if True:
        import resource, sys
        from tests.recorder.test_dump import *
        limit, path = int(sys.argv[1]), Path(sys.argv[2])
        rows = pa.concat_tables([table_of(some_frames())] * 50_000) if limit > 10_000 else table_of([])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            write_dump(path, rows, run_info())
        except RecorderError as error:
            print(error)
    """
    path = tmp_path / "d.parquet"
    command = [sys.executable, "-W", "error", "-c", script, str(limit), str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}: cannot write the dump: File too large\n"
    assert names(tmp_path) == []


# what is bad is refused


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def text(path: Path) -> None:
    path.write_text("this is a text file with the right name\n")


def cut_in_half(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def without_its_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def only_magic(path: Path) -> None:
    path.write_bytes(b"PAR1")


def bad_footer(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-200] + bytes(100) + whole[-100:])


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"city": ["Oslo"]}), path)


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table], pairs: dict[bytes, bytes | None]) -> None:
    """The same dump, by another writer, with changed columns and metadata."""
    kept = {SCHEMA_VERSION_KEY: b"1", RUN_INFO_KEY: run_info().to_json().encode(), **pairs}
    kept = {key: value for key, value in kept.items() if value is not None}
    pq.write_table(change(pq.read_table(path)).replace_schema_metadata(kept), path)


def same(table: pa.Table) -> pa.Table:
    return table


def newer(path: Path) -> None:
    rewritten(path, same, {SCHEMA_VERSION_KEY: b"7"})


def odd_version(path: Path) -> None:
    rewritten(path, same, {SCHEMA_VERSION_KEY: b"\xff"})


def no_metadata(path: Path) -> None:
    rewritten(path, same, {RUN_INFO_KEY: None})


def broken_metadata(path: Path) -> None:
    rewritten(path, same, {RUN_INFO_KEY: b'{"run_id": '})


def strange_metadata(path: Path) -> None:
    rewritten(path, same, {RUN_INFO_KEY: b'{"run_id": "a", "warnings": [7]}'})


def no_abs_max(path: Path) -> None:
    rewritten(path, lambda table: table.drop_columns(["abs_max"]), {})


def text_for_seq(path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(3, "seq", table.column("seq").cast(pa.string()))

    rewritten(path, change, {})


BAD = [
    (missing, "no such file"),
    (empty, "the file is empty"),
    (directory, "a directory"),
    (text, "not a Parquet file"),
    (cut_in_half, "cut off"),
    (without_its_last_byte, "cut off"),
    (only_magic, "cut off"),
    (bad_footer, "damaged"),
    (foreign, "not a dump of Overflight"),
    (newer, "was written by a newer Overflight (schema version 7), this one reads 1: upgrade"),
    (odd_version, "unknown schema version"),
    (no_metadata, "run metadata is missing"),
    (broken_metadata, "run metadata is not the JSON"),
    (strange_metadata, "run metadata is not the JSON"),
    (no_abs_max, "the column 'abs_max' is missing"),
    (text_for_seq, "the column 'seq' is string instead of int64"),
]


@pytest.mark.parametrize("read", [read_dump, read_info, read_table])
@pytest.mark.parametrize(("spoil", "problem"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_a_bad_file_is_one_sentence_that_names_it(
    dump: Path, spoil: Callable[[Path], None], problem: str, read: Callable[[Path], object]
) -> None:
    spoil(dump)
    with pytest.raises(DumpError) as caught:
        read(dump)
    said = str(caught.value)
    assert said.startswith(f"{dump}: ")
    assert problem in said
    assert "\n" not in said


@pytest.mark.parametrize("filters", [None, [("seq", ">", -1)]])
def test_a_damaged_page_of_any_column_is_an_error_and_never_a_number(dump: Path, filters: object) -> None:
    whole = dump.read_bytes()
    group = pq.read_metadata(dump).row_group(0)
    for index in range(group.num_columns):
        column = group.column(index)
        end = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
        dump.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
        with pytest.raises(DumpError, match=r"overflow-rank0000\.parquet: the file is damaged: .*"):
            read_table(dump, filters=filters)


def test_more_columns_are_a_newer_minor_version(dump: Path, table: pa.Table) -> None:
    rewritten(dump, lambda t: t.add_column(0, "colour", pa.array(["red"] * 60)), {SCHEMA_VERSION_KEY: b"1.4"})
    found = read_dump(dump).table
    assert found.column_names == [*DUMP_SCHEMA.names, "colour"]
    assert found.select(DUMP_SCHEMA.names).equals(table)


def test_text_that_another_writer_left_plain_is_read_too(dump: Path, table: pa.Table) -> None:
    rewritten(dump, lambda t: t.set_column(9, "module", t.column("module").cast(pa.large_string())), {})
    assert read_dump(dump).table.to_pylist() == table.to_pylist()
    assert read_dump(dump).table.schema.equals(DUMP_SCHEMA)


def test_a_question_for_a_column_that_no_dump_has_does_not_blame_the_file(dump: Path) -> None:
    with pytest.raises(pa.ArrowInvalid, match="colour"):
        read_table(dump, filters=[("colour", "=", "red")])


def test_a_dump_of_a_whole_run_reads_back(tmp_path: Path) -> None:
    (path,) = overflow_run(tmp_path).glob("*.parquet")
    found = to_frame(read_table(path))
    assert found["seq"].is_monotonic_increasing
    assert found["origin"].sum() == 1
