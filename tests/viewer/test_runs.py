"""Finding and opening runs: what is given is a dump, a run, a directory of runs, or nothing of the sort."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from recorder.errors import DumpError
from recorder.schema import Trigger
from tests.builders import (
    ORIGIN_MODULE,
    batch_frames,
    broken_files,
    dump_of,
    healthy_run,
    killed_run,
    live_ring,
    overflow_run,
    quiet_run,
    run_info,
    write_run_file,
)
from viewer.runs import first_overflow, load, load_run, open_paths

WRONG = {
    "missing": "no such file",
    "empty": "empty",
    "no_dumps": "without dumps",
    "text": "",
    "truncated": "",
    "cut_tail": "",
    "foreign": "",
    "newer": "version",
    "no_run": "",
    "no_column": "abs_max",
}


def test_one_dump_is_a_run_of_one_dump(tmp_path: Path) -> None:
    (path,) = overflow_run(tmp_path).glob("*.parquet")
    (run,) = open_paths([path])
    assert [dump.path for dump in run.dumps] == [path]
    assert run.run_id == "run-a"


def test_a_dump_is_known_by_its_metadata(tmp_path: Path) -> None:
    (run,) = open_paths([overflow_run(tmp_path)])
    (dump,) = run.dumps
    table, info = load(dump)
    assert dump.num_rows == table.num_rows > 100
    assert dump.info == info
    assert dump.size == dump.path.stat().st_size
    assert info.trigger is not None
    assert info.trigger.module == ORIGIN_MODULE


def test_a_directory_of_runs_gives_each_run_oldest_first(tmp_path: Path) -> None:
    new, old = overflow_run(tmp_path, "a-new"), healthy_run(tmp_path, "z-old")
    for path in old.iterdir():
        os.utime(path, (1, 1))
    assert [run.directory for run in open_paths([tmp_path])] == [old, new]


def test_dumps_come_in_the_order_of_their_batches_whatever_a_copy_made_of_their_times(tmp_path: Path) -> None:
    directory = healthy_run(tmp_path, batches=3)
    for age, path in enumerate(sorted(directory.glob("*.parquet"))):
        os.utime(path, (100 - age, 100 - age))
    (run,) = open_paths([directory])
    assert [dump.info.trigger.batch for dump in run.dumps if dump.info.trigger] == [0, 1, 2]


def test_dumps_of_several_runs_in_one_directory_are_told_apart(tmp_path: Path) -> None:
    mixed = tmp_path / "mails"
    mixed.mkdir()
    for run in (overflow_run(tmp_path / "x", "one"), overflow_run(tmp_path / "y", "two")):
        (path,) = run.glob("*.parquet")
        shutil.copy(path, mixed / f"{run.name}.parquet")
    assert sorted(run.run_id for run in open_paths([mixed])) == ["one", "two"]


def test_the_same_dump_named_twice_is_one_dump(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    (path,) = directory.glob("*.parquet")
    (run,) = open_paths([path, directory, tmp_path])
    assert len(run.dumps) == 1


def test_a_closed_run_without_dumps_is_a_run(tmp_path: Path) -> None:
    (run,) = open_paths([quiet_run(tmp_path)])
    assert run.info is not None
    assert not run.dumps
    assert not run.problems


def test_hidden_and_unrelated_files_are_passed_over(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    (directory / ".half-written.parquet").write_bytes(b"PAR1")
    (directory / "notes.txt").write_text("learning rate was wrong")
    (run,) = open_paths([directory])
    assert len(run.dumps) == 1
    assert not run.problems


@pytest.mark.parametrize("wrong", WRONG)
def test_a_bad_path_is_one_sentence_that_names_it(tmp_path: Path, wrong: str) -> None:
    (good,) = overflow_run(tmp_path / "good").glob("*.parquet")
    path = broken_files(tmp_path / "bad", good)[wrong]
    with pytest.raises(DumpError) as caught:
        open_paths([path])
    said = str(caught.value)
    assert str(path) in said
    assert WRONG[wrong] in said
    assert "\n" not in said


@pytest.mark.parametrize("wrong", ["empty", "text", "truncated", "foreign", "newer"])
def test_a_broken_file_does_not_hide_the_good_ones(tmp_path: Path, wrong: str) -> None:
    directory = overflow_run(tmp_path)
    (good,) = directory.glob("*.parquet")
    bad = broken_files(tmp_path / "bad", good)[wrong].rename(directory / "overflow-batch000009-rank0000.parquet")
    (run,) = open_paths([directory])
    assert [dump.path for dump in run.dumps] == [good]
    assert [path for path, _ in run.problems] == [bad]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run_id": 3}', '{"run_id": "a", "warnings": [7]}', "\x00"])
def test_broken_run_metadata_is_a_problem_of_the_run(tmp_path: Path, text: str) -> None:
    directory = overflow_run(tmp_path)
    (directory / "_run.json").write_text(text)
    (run,) = open_paths([directory])
    assert len(run.dumps) == 1
    assert [path.name for path, _ in run.problems] == ["_run.json"]


def test_a_directory_with_nothing_but_broken_files_says_what_is_wrong_with_the_first(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_text("no")
    with pytest.raises(DumpError, match=r"none of its 2 files.*a\.parquet"):
        open_paths([tmp_path])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "dump.parquet"
    os.mkfifo(pipe)
    with pytest.raises(DumpError, match="not a regular file"):
        open_paths([pipe])


def test_the_first_overflow_is_the_one_with_the_first_trigger(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    for batch, seq in ((7, 300), (3, 120), (3, 140)):
        info = run_info("run", trigger=Trigger("overflow", batch=batch, seq=seq))
        dump_of(directory / f"overflow-{seq}.parquet", batch_frames(0, 1.0), info)
    (run,) = open_paths([directory])
    first = first_overflow(run)
    assert first is not None
    assert first.path.name == "overflow-120.parquet"


def test_a_healthy_run_has_no_first_overflow(tmp_path: Path) -> None:
    (run,) = open_paths([healthy_run(tmp_path)])
    assert first_overflow(run) is None


def test_records_that_two_dumps_share_are_read_once(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    frames = [*batch_frames(0, 1.0), *batch_frames(1, 1.0)]
    dump_of(directory / "trace.parquet", frames[:60], run_info("run"))
    dump_of(directory / "overflow.parquet", frames, run_info("run"))
    (run,) = open_paths([directory])
    assert len(load_run(run)) == sum(len(frame.records) for frame in frames)


def test_reading_a_run_without_dumps_is_a_clear_error(tmp_path: Path) -> None:
    (run,) = open_paths([quiet_run(tmp_path)])
    with pytest.raises(DumpError, match="no dump yet"):
        load_run(run)


def test_run_metadata_of_another_run_in_the_same_directory_stays_its_own(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path, "run-a")
    write_run_file(directory, run_info("run-b"))
    assert {run.run_id: bool(run.dumps) for run in open_paths([directory])} == {"run-a": True, "run-b": False}


def test_a_ring_is_alive_while_its_process_is(tmp_path: Path) -> None:
    ring = live_ring(tmp_path / "run", "run")
    (run,) = open_paths([tmp_path / "run"])
    (found,) = run.rings
    assert (found.alive, found.closed, found.left_behind) == (True, False, False)
    assert found.num_rows == len(load_run(run)) == ring.position


def test_a_ring_of_a_killed_process_is_left_behind(tmp_path: Path) -> None:
    (run,) = open_paths([killed_run(tmp_path)])
    (found,) = run.rings
    assert (found.alive, found.closed, found.left_behind) == (False, False, True)


def test_a_ring_that_is_no_ring_is_a_problem_of_its_run(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    (directory / "_rank0000.1.ring").write_bytes(b"no ring")
    (run,) = open_paths([directory])
    assert [path.name for path, _ in run.problems] == ["_rank0000.1.ring"]
