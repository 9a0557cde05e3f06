"""A dump, a ring or a run is read as one DataFrame; what a dead process left behind becomes a dump."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import recorder
from recorder.dump import read_dump, read_info, write_dump
from recorder.errors import DumpError
from recorder.processes import QUIET_NS, is_alive, this_process
from recorder.reading import read, recover
from recorder.records import Frame
from recorder.ring import Ring
from recorder.schema import Role
from tests.builders import frame, run_info, table_of, tensor

REPOSITORY = Path(__file__).parents[2]


def one(seq: int) -> Frame:
    """A frame with an input and an output."""
    records = [tensor(Role.INPUT, "0", float(seq)), tensor(Role.OUTPUT, "", float(seq))]
    return frame(seq, f"encoder.{seq % 2}", records, batch=seq // 4, step=seq // 4)


def write(path: Path, seqs: range, rank: int = 0) -> Path:
    return write_dump(path, table_of([one(seq) for seq in seqs], rank), run_info(rank=rank))


def make_ring(directory: Path, seqs: range, capacity: int = 64) -> Ring:
    ring = Ring.create(directory, run_id="run-a", rank=0, capacity=capacity)
    ring.set_info(run_info())
    for seq in seqs:
        ring.append(one(seq))
    return ring


def dead_ring(directory: Path, count: int = 5, end: str = "os.kill(os.getpid(), 9)", info: bool = True) -> Path:
    """A ring whose process is gone."""
    script = f"""if True:
        import os
        from tests.recorder.test_reading import *
        ring = make_ring(Path({str(directory)!r}), range({count}), capacity=6)
        print(ring.path, flush=True)
        {end}
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return Path(done.stdout.strip())


# read


def test_a_dump_and_a_ring_of_the_same_frames_read_alike(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.parquet", range(5))
    ring = make_ring(tmp_path, range(5))
    assert recorder.read(dump).equals(read(ring.path))


def test_a_run_is_read_whole_each_record_once_and_in_order(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", range(0, 6))
    write(tmp_path / "a.parquet", range(4, 9))
    write(tmp_path / "r1.parquet", range(0, 2), rank=1)
    make_ring(tmp_path, range(7, 12))
    found = read(tmp_path)
    assert found["seq"].tolist() == [seq for seq in range(12) for _ in range(2)] + [0, 0, 1, 1]
    assert found["rank"].tolist() == [0] * 24 + [1] * 4
    assert found["role"].tolist() == ["input", "output"] * 14
    assert str(found["module"].dtype) == "category"


def test_what_is_hidden_or_unrelated_in_a_run_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(3))
    (tmp_path / ".half.parquet").write_bytes(b"PAR1")
    (tmp_path / "notes.txt").write_text("learning rate was wrong")
    assert len(read(str(tmp_path))) == 6


@pytest.mark.parametrize("function", [read, recover])
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.mkdir(), "a directory without dumps"),
        (lambda path: path.write_text("text"), "not a"),
    ],
)
@pytest.mark.parametrize("name", ["d.parquet", "d.ring"])
def test_a_bad_path_is_one_sentence_that_names_it(
    tmp_path: Path, function: Callable[[Path], object], make: Callable[[Path], object], problem: str, name: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(DumpError) as caught:
        function(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert problem in str(caught.value)


def test_a_bad_file_in_a_run_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(3))
    (tmp_path / "b.parquet").write_text("text")
    with pytest.raises(DumpError, match=r"b\.parquet: not a Parquet file"):
        read(tmp_path)


# recover


def test_a_dead_process_leaves_a_dump_with_its_records_and_its_metadata(tmp_path: Path) -> None:
    ring = dead_ring(tmp_path, count=5)
    (path,) = recover(ring)
    found = read_dump(path)
    assert path == tmp_path / "recovered-batch000001-rank0000.parquet"
    assert found.table.column("seq").to_pylist() == [2, 2, 3, 3, 4, 4]
    assert found.info.trigger is not None
    assert (found.info.trigger.kind, found.info.trigger.batch, found.info.trigger.step) == ("recovered", 1, 1)
    assert found.info == replace(run_info(), trigger=found.info.trigger, evicted=4)
    assert not ring.exists()


def test_a_directory_of_runs_is_recovered_whole(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        dead_ring(tmp_path / name)
    assert [path.parent.name for path in recover(tmp_path)] == ["a", "b"]
    assert recover(tmp_path) == []


def test_a_ring_in_use_is_refused_and_stays(tmp_path: Path) -> None:
    ring = make_ring(tmp_path, range(3))
    for path in (ring.path, tmp_path):
        with pytest.raises(DumpError, match=r"_rank0000.*still running"):
            recover(path)
    assert len(read(ring.path)) == 6


def test_a_ring_in_use_does_not_stop_the_recovery_of_others(tmp_path: Path) -> None:
    alive, dead = make_ring(tmp_path, range(3)), dead_ring(tmp_path)
    with pytest.warns(RuntimeWarning, match="still running"):
        (path,) = recover(tmp_path)
    assert read_info(path).evicted == 4
    assert alive.path.exists()
    assert not dead.exists()


def test_a_ring_that_was_closed_is_recovered_while_its_process_goes_on(tmp_path: Path) -> None:
    make_ring(tmp_path, range(3)).close(clean=True)
    (path,) = recover(tmp_path)
    assert len(read(path)) == 6


def test_a_ring_without_records_makes_no_dump_and_is_removed(tmp_path: Path) -> None:
    ring = dead_ring(tmp_path, count=0)
    assert recover(ring) == []
    assert not ring.exists()


def test_a_recovered_dump_never_takes_the_place_of_another(tmp_path: Path) -> None:
    first = recover(dead_ring(tmp_path))
    second = recover(dead_ring(tmp_path))
    assert [path.name for path in first + second] == [
        "recovered-batch000001-rank0000.parquet",
        "recovered-batch000001-rank0000-2.parquet",
    ]


def test_a_ring_is_kept_when_its_dump_cannot_be_written(tmp_path: Path) -> None:
    ring = dead_ring(tmp_path)
    script = """if True:
        import resource, sys
        from tests.recorder.test_reading import *
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            recover(Path(sys.argv[1]))
        except recorder.RecorderError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", script, str(ring)], cwd=REPOSITORY, capture_output=True, text=True)
    assert "cannot write the dump" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [ring.name]
    assert len(recover(ring)) == 1


# who is alive


def test_this_process_is_alive_and_one_that_was_waited_for_is_not() -> None:
    here = this_process()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert is_alive(here, 0, time.time_ns())
    assert not is_alive(replace(here, pid=gone.pid), time.time_ns(), time.time_ns())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_dead_process_that_nobody_has_waited_for_is_not_alive() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert zombie.stdout is not None
    zombie.stdout.read()
    here = this_process()
    while is_alive(replace(here, pid=zombie.pid, started=started(zombie.pid)), 0, 0):
        pass  # its pipe closes a moment before it ends
    zombie.communicate()


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.mark.skipif(not this_process().boot_id, reason="this system does not name its boots")
def test_a_pid_that_was_given_to_another_process_is_not_alive() -> None:
    here = this_process()
    assert not is_alive(replace(here, started=here.started + 1), time.time_ns(), time.time_ns())
    assert not is_alive(replace(here, boot_id="before"), time.time_ns(), time.time_ns())


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere", "boot_id": "other"}, {"pid_namespace": "pid:[1]"}])
def test_a_process_elsewhere_is_taken_for_dead_when_it_has_long_been_quiet(elsewhere: dict[str, Any]) -> None:
    there = replace(this_process(), **elsewhere)
    assert is_alive(there, last_sign_ns=1, now_ns=QUIET_NS)
    assert not is_alive(there, last_sign_ns=1, now_ns=QUIET_NS + 1)
