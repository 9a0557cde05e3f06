"""What of a run can be looked at, which of it comes first, and what several dumps say together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recorder.errors import DumpError
from recorder.schema import RUN_INFO_KEY, SCHEMA_VERSION, SCHEMA_VERSION_KEY
from tests.builders import batch_frames, healthy_run, killed_run, overflow_run, quiet_run, run_info, table_of
from viewer.columns import Records
from viewer.runs import Run, open_paths
from viewer.sources import chosen_source, load_source, run_names, sources


def run_of(path: Path) -> Run:
    (run,) = open_paths([path])
    return run


def test_a_single_dump_is_its_only_source(tmp_path: Path) -> None:
    (source,) = sources(run_of(overflow_run(tmp_path)))
    assert source.label == "overflow, batch 2"


def test_the_traced_batches_of_a_run_come_together_first(tmp_path: Path) -> None:
    run = run_of(healthy_run(tmp_path, batches=3))
    assert [source.label for source in sources(run)] == [
        "all 3 dumps",
        "traced batch, batch 0",
        "traced batch, batch 1",
        "traced batch, batch 2",
    ]
    source = chosen_source(run, "")
    assert source is not None
    records, info = load_source(source)
    whole = Records(table_of([one for batch in range(3) for one in batch_frames(batch, 1.0)]))
    assert records.table.equals(whole.table)
    assert [batch.batch for batch in info.batches] == [0, 1, 2]


def test_an_overflow_comes_before_everything(tmp_path: Path) -> None:
    traced, overflowed = healthy_run(tmp_path, "run-a", batches=2), overflow_run(tmp_path / "other")
    for dump in overflowed.glob("*.parquet"):
        shutil.copy(dump, traced)
    source = chosen_source(run_of(traced), "")
    assert source is not None
    assert source.label == "overflow, batch 2"


def test_a_source_is_found_by_its_name_and_a_wrong_name_is_the_first(tmp_path: Path) -> None:
    run = run_of(healthy_run(tmp_path, batches=2))
    named = chosen_source(run, "trace-batch000001-rank0000.parquet")
    assert named is not None
    assert named.label == "traced batch, batch 1"
    assert chosen_source(run, "gone.parquet") == chosen_source(run, "")


def test_ranks_are_told_apart(tmp_path: Path) -> None:
    overflow_run(tmp_path, rank=0)
    labels = [source.label for source in sources(run_of(overflow_run(tmp_path, rank=1)))]
    assert sorted(labels) == ["overflow, batch 2, rank 0", "overflow, batch 2, rank 1"]


def test_a_run_without_dumps_has_no_source(tmp_path: Path) -> None:
    assert chosen_source(run_of(quiet_run(tmp_path)), "") is None


def test_the_stamp_changes_with_the_file(tmp_path: Path) -> None:
    directory = healthy_run(tmp_path, batches=1)
    (before,) = sources(run_of(directory))
    (dump,) = directory.glob("*.parquet")
    dump.unlink()
    healthy_run(tmp_path, batches=1, scale=2.0)
    (after,) = sources(run_of(directory))
    assert before.stamp != after.stamp


def test_a_dump_without_a_column_is_an_error_that_names_file_and_column(tmp_path: Path) -> None:
    path = tmp_path / "thin.parquet"
    metadata = {SCHEMA_VERSION_KEY: SCHEMA_VERSION.encode(), RUN_INFO_KEY: run_info().to_json().encode()}
    table = table_of(batch_frames(0, 1.0)).drop_columns(["abs_max"])
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(DumpError, match=r"thin\.parquet.*abs_max"):
        load_source(sources(run_of(path))[0])


def test_a_ring_is_a_source_where_there_is_no_dump(tmp_path: Path) -> None:
    source = chosen_source(run_of(killed_run(tmp_path)), "")
    assert source is not None
    records, info = load_source(source)
    assert len(records) > 0
    assert info.run_id == "killed"


def test_runs_of_the_same_id_are_told_apart_by_their_directories(tmp_path: Path) -> None:
    first, second = overflow_run(tmp_path / "a"), overflow_run(tmp_path / "b")
    names = run_names([run_of(first), run_of(second), run_of(healthy_run(tmp_path))])
    assert list(names) == [f"run-a in {first}", f"run-a in {second}", "healthy"]
