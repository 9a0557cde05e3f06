"""The ring keeps the latest records of a process, outlives it, and never hands out a record that is not whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.encoding import SLOT, SLOT_SIZE
from recorder.errors import DumpError, RecorderError
from recorder.records import Frame
from recorder.ring import Ring, scan
from recorder.ring_file import HEADER_SIZE, LOG_RESERVE, RingState
from recorder.schema import Role, RunInfo
from tests.builders import frame, not_a_tensor, table_of, tensor
from tests.recorder.storage_cases import frame_lists

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def fresh_ring(capacity: int = 8) -> Iterator[Ring]:
    """A ring for one example of a property, removed afterwards."""
    with TemporaryDirectory() as directory:
        yield new_ring(Path(directory), capacity)


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return new_ring(tmp_path)


def new_ring(directory: Path, capacity: int = 8) -> Ring:
    return Ring.create(directory, run_id="run-a", rank=0, capacity=capacity)


def one(seq: int) -> Frame:
    """A frame with one record."""
    return frame(seq, "encoder.wo", [tensor(Role.OUTPUT, "", float(seq))])


def fill(ring: Ring, seqs: range) -> None:
    for seq in seqs:
        ring.append(one(seq))


def seqs(ring: Ring, since: int = 0) -> list[int]:
    found: list[int] = ring.table(since).column("seq").to_pylist()
    return found


def in_child(body: str, *words: str) -> subprocess.Popen[str]:
    """A Python process that runs `body` with this module's names at hand."""
    script = "from tests.recorder.test_ring import *\n" + textwrap.dedent(body)
    command = [sys.executable, "-c", script, *words]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


# what goes in comes out


@settings(deadline=None)
@given(frame_lists(), st.integers(1, 12))
def test_what_is_appended_is_what_the_table_holds(frames: list[Frame], capacity: int) -> None:
    expected = table_of(frames).to_pylist()
    with fresh_ring(capacity) as ring:
        for each in frames:
            ring.append(each)
        assert ring.table().to_pylist() == expected[-capacity:]
        assert ring.position == len(expected)
        assert ring.evicted == max(0, len(expected) - capacity)


@settings(deadline=None)
@given(st.lists(frame_lists(), max_size=3), st.integers(1, 12))
def test_appending_in_bulk_is_the_same_as_one_by_one(bulks: list[list[Frame]], capacity: int) -> None:
    with fresh_ring(capacity) as single, fresh_ring(capacity) as many:
        for frames in bulks:
            for each in frames:
                single.append(each)
            many.append_many(frames)
        assert many.position == single.position
        assert many.table().equals(single.table())
        assert scan(many.path).table.equals(many.table())


@settings(deadline=None)
@given(frame_lists(), st.integers(1, 12))
def test_another_process_reads_what_the_owner_reads(frames: list[Frame], capacity: int) -> None:
    with fresh_ring(capacity) as ring:
        ring.append_many(frames)
        contents = scan(ring.path)
        assert contents.table.equals(ring.table())
        assert (contents.evicted, contents.gaps, contents.torn) == (ring.evicted, 0, 0)


def test_the_table_begins_where_it_is_asked_to(ring: Ring) -> None:
    fill(ring, range(5))
    assert seqs(ring, since=3) == [3, 4]
    assert seqs(ring, since=5) == []


def test_what_is_evicted_is_counted_and_not_in_the_table(ring: Ring) -> None:
    fill(ring, range(11))
    assert ring.evicted == 3
    assert seqs(ring, since=1) == list(range(3, 11))


@pytest.mark.parametrize("append", [Ring.append, lambda ring, each: ring.append_many([each])], ids=["single", "bulk"])
def test_a_frame_larger_than_the_ring_leaves_its_end(ring: Ring, append: Callable[[Ring, Frame], None]) -> None:
    append(ring, frame(0, "m", [tensor(Role.INPUT, str(i), 1.0) for i in range(20)]))
    assert ring.table().column("key").to_pylist() == [str(i) for i in range(12, 20)]


def test_an_empty_ring_is_an_empty_table(ring: Ring) -> None:
    ring.append_many([])
    ring.append_many([frame(0, "m", [])])
    assert ring.table().num_rows == scan(ring.path).table.num_rows == 0


def test_only_the_bad_unexpected_outputs_of_an_origin_are_marked(tmp_path: Path) -> None:
    ring = new_ring(tmp_path, capacity=16)
    records = [
        tensor(Role.INPUT, "0", 1.0),
        tensor(Role.OUTPUT, "0", 1.0),
        tensor(Role.OUTPUT, "1", 1.0, nan=1),
        tensor(Role.OUTPUT, "2", 1.0, neginf=1, expected=True),
        not_a_tensor(Role.OUTPUT, "3", "NoneType"),
    ]
    ring.append(frame(0, "m", records, origin=True))
    ring.append(frame(1, "m", records, origin=False))
    assert ring.table().column("origin").to_pylist() == [False, False, True, False, False] + [False] * 5


def test_what_was_not_computed_is_null_and_only_flagged_is_always_known(ring: Ring) -> None:
    ring.append(frame(0, "m", [not_a_tensor(Role.INPUT, "0", "NoneType")]))
    (row,) = ring.table().to_pylist()
    numbers = ["numel", "shape", "device", "abs_min", "abs_max", "mean", "rms", "has_nan", "has_inf"]
    counts = ["num_nan", "num_posinf", "num_neginf", "num_zero", "num_subnormal"]
    assert all(row[name] is None for name in numbers + counts)
    assert row["flagged"] is False


def test_names_that_no_file_can_hold_are_spelled_out(ring: Ring) -> None:
    ring.append(frame(0, "bad\udcff", [tensor(Role.INPUT, "\ud800", 1.0)]))
    assert ring.table().column("module").to_pylist() == ["bad\\udcff"]
    assert scan(ring.path).table.column("key").to_pylist() == ["\\ud800"]


def test_more_names_than_were_provided_for_are_all_kept(ring: Ring) -> None:
    long = "x" * 50_000
    for seq in range(2 * LOG_RESERVE // len(long)):
        ring.append(frame(seq, f"{seq}.{long}", [tensor(Role.OUTPUT, "", 1.0)]))
    assert scan(ring.path).table.equals(ring.table())


# a record is whole or it is not there


@settings(deadline=None)
@given(st.integers(0, SLOT_SIZE - 1), st.integers(1, 255), st.integers(0, 7))
def test_a_slot_with_any_byte_changed_is_rejected(at: int, change: int, slot: int) -> None:
    with fresh_ring() as ring:
        fill(ring, range(20))
        spoil(ring.path, HEADER_SIZE + slot * SLOT_SIZE + at, change)
        contents = scan(ring.path)
    assert contents.table.column("seq").to_pylist() == [seq for seq in range(12, 20) if seq % 8 != slot]
    assert (contents.torn, contents.gaps) == (1, 1)


def test_a_slot_that_is_being_written_is_rejected(ring: Ring) -> None:
    fill(ring, range(8))
    overwrite(ring.path, HEADER_SIZE + 3 * SLOT_SIZE, bytes(8))
    contents = scan(ring.path)
    assert contents.table.column("seq").to_pylist() == [0, 1, 2, 4, 5, 6, 7]
    assert (contents.torn, contents.gaps) == (1, 1)


def test_a_whole_slot_in_the_wrong_place_is_rejected(ring: Ring) -> None:
    fill(ring, range(8))
    first = ring.path.read_bytes()[HEADER_SIZE : HEADER_SIZE + SLOT_SIZE]
    overwrite(ring.path, HEADER_SIZE + 5 * SLOT_SIZE, first)
    contents = scan(ring.path)
    assert contents.table.column("seq").to_pylist() == [0, 1, 2, 3, 4, 6, 7]


def test_a_record_whose_names_are_lost_is_rejected(ring: Ring) -> None:
    fill(ring, range(2))
    ring.append(frame(2, "late", [tensor(Role.OUTPUT, "", 1.0)]))
    log = ring.path.read_bytes()[HEADER_SIZE + 8 * SLOT_SIZE :]
    spoil(ring.path, HEADER_SIZE + 8 * SLOT_SIZE + log.index(b"late"), 1)
    contents = scan(ring.path)
    assert contents.table.column("seq").to_pylist() == [0, 1]
    assert contents.torn == 1


def test_no_torn_record_is_accepted_while_the_writer_runs(tmp_path: Path) -> None:
    writer = in_child(
        """
        import itertools
        ring = new_ring(Path(sys.argv[1]), capacity=512)
        print(ring.path, flush=True)
        for seq in itertools.count():
            ring.append(frame(seq, "m", [tensor(Role.OUTPUT, "", float(seq), abs_min=float(seq))] * 3, batch=seq))
        """,
        str(tmp_path),
    )
    assert writer.stdout is not None
    path, last = Path(writer.stdout.readline().strip()), -1
    try:
        for _ in range(200):
            table = scan(path).table
            order, *others = (table.column(name).to_numpy() for name in ("seq", "batch", "abs_min", "abs_max"))
            assert all((order == other).all() for other in others)
            assert (np.diff(order) >= 0).all()
            last = max([last, *order])
    finally:
        writer.kill()
        writer.communicate()
    assert last > 0


# it outlives its process


def test_a_killed_process_loses_no_acknowledged_record(tmp_path: Path) -> None:
    capacity = 64
    child = in_child(
        """
        import itertools
        ring = new_ring(Path(sys.argv[1]), capacity=64)
        ring.set_info(RunInfo("run-a", versions={"torch": "2.13.0"}))
        print(ring.path, flush=True)
        for seq in itertools.count():
            ring.append(one(seq))
            print(seq, flush=True)
        """,
        str(tmp_path),
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    for _ in range(300):
        child.stdout.readline()
    child.kill()
    rest, _ = child.communicate()
    acknowledged = 299 + sum(line.endswith("\n") for line in rest.splitlines(keepends=True))
    contents = scan(path)
    found = contents.table.column("seq").to_pylist()
    assert child.returncode == -signal.SIGKILL
    assert found[-1] >= acknowledged
    assert found[0] <= max(0, acknowledged - capacity + 2)
    assert found == list(range(found[0], found[-1] + 1))
    assert contents.state is RingState.OPEN
    assert not contents.alive
    assert contents.info.versions == {"torch": "2.13.0"}


def test_the_owner_is_seen_to_live_until_it_says_that_it_is_done(ring: Ring) -> None:
    assert scan(ring.path).alive
    assert scan(ring.path).pid == os.getpid()
    ring.close(clean=True)
    contents = scan(ring.path)
    assert contents.state is RingState.CLEAN
    assert not contents.alive


def test_a_closed_ring_can_still_be_read_but_takes_no_more(ring: Ring) -> None:
    fill(ring, range(3))
    ring.close(clean=True)
    ring.close(clean=False)
    fill(ring, range(3, 5))
    ring.set_info(RunInfo("late"))
    assert seqs(ring) == [0, 1, 2]
    assert scan(ring.path).state is RingState.CLEAN


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_writes_nor_removes_its_parents_ring(ring: Ring) -> None:
    fill(ring, range(2))
    before = ring.path.read_bytes()
    child = os.fork()
    if child == 0:
        try:
            fill(ring, range(2, 4))
            ring.append_many([one(9)])
            ring.set_info(RunInfo("child"))
            ring.close(clean=True)
            ring.unlink()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert ring.path.read_bytes() == before
    fill(ring, range(2, 4))
    assert seqs(ring) == [0, 1, 2, 3]


# the run's metadata


def test_the_newest_metadata_is_the_one_that_is_read(ring: Ring) -> None:
    assert scan(ring.path).info == RunInfo("run-a", 0)
    for number in range(5):
        info = RunInfo("run-a", evicted=number, settings={"long": "x" * number * 5000})
        ring.set_info(info)
        fill(ring, range(number, number + 1))
        assert scan(ring.path).info == info


def test_metadata_of_one_size_takes_no_more_room_each_time(ring: Ring) -> None:
    info = RunInfo("run-a", settings={"long": "x" * LOG_RESERVE})
    for number in range(2, 22):
        ring.set_info(replace(info, world_size=number))
    assert scan(ring.path).info.world_size == 21
    assert ring.path.stat().st_size < 5 * LOG_RESERVE


def test_half_written_metadata_gives_way_to_the_one_before_and_loses_no_names(ring: Ring) -> None:
    for number in (1, 2, 3):
        ring.set_info(RunInfo("run-a", world_size=number))
        ring.append(frame(number, f"module{number}", [tensor(Role.OUTPUT, "", 1.0)]))
    spoil(ring.path, ring.path.read_bytes().index(b'\\"world_size\\": 3'), 1)
    contents = scan(ring.path)
    assert contents.info.world_size == 2
    assert contents.table.equals(ring.table())


# the file


def test_the_file_is_private_and_all_of_it_is_set_aside(ring: Ring) -> None:
    found = ring.path.stat()
    assert found.st_mode & 0o777 == 0o600
    assert found.st_size >= HEADER_SIZE + 8 * SLOT_SIZE
    assert found.st_blocks * 512 >= found.st_size


def test_it_is_named_by_rank_and_process_and_a_second_one_gets_a_number(tmp_path: Path) -> None:
    names = [Ring.create(tmp_path, run_id="r", rank=3, capacity=1).path.name for _ in range(2)]
    assert names == [f"_rank0003.{os.getpid()}.ring", f"_rank0003.{os.getpid()}-2.ring"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    (tmp_path / f"_rank0000.{os.getpid()}.ring").symlink_to(target)
    ring = new_ring(tmp_path)
    assert not target.exists()
    assert not ring.path.is_symlink()


def test_a_slot_is_a_power_of_two_and_not_above_512_bytes() -> None:
    assert SLOT.itemsize == SLOT_SIZE == 128


def test_a_directory_that_is_not_there_is_an_error_that_names_the_ring(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match=r"missing.*_rank0000.*cannot make the ring: No such file"):
        new_ring(tmp_path / "missing")


def test_a_disk_without_room_is_an_error_that_names_the_ring_and_leaves_nothing(tmp_path: Path) -> None:
    child = in_child(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            new_ring(Path(sys.argv[1]), capacity=1 << 20)
        except RecorderError as error:
            print(error)
        """,
        str(tmp_path),
    )
    said, _ = child.communicate()
    assert f"{tmp_path}/_rank0000." in said
    assert "cannot set 129 MiB aside for the ring: File too large" in said
    assert list(tmp_path.iterdir()) == []


def test_a_really_full_disk_is_an_error_and_not_a_dead_process(tmp_path: Path) -> None:
    """On a file system of 1 MiB of its own, where the system lets us make one."""
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    prepare = 'mount -t tmpfs -o size=1m tmpfs "$0"'
    try:
        allowed = subprocess.run([*mount, prepare, str(tmp_path)], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("may not mount a file system here")
    script = (
        "from tests.recorder.test_ring import *\n"
        "try: new_ring(Path(sys.argv[1]), 65536)\n"
        "except RecorderError as error: print(error, os.listdir(sys.argv[1]))"
    )
    command = [*mount, f'{prepare} && exec "$1" -c "$2" "$0"', str(tmp_path), sys.executable, script]
    said = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/_rank0000." in said
    assert "No space left on device []" in said


def test_names_that_no_longer_fit_are_an_error_and_earlier_records_stay(tmp_path: Path) -> None:
    child = in_child(
        """
        ring = new_ring(Path(sys.argv[1]))
        fill(ring, range(3))
        limit = ring.path.stat().st_size
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            ring.append(frame(3, "x" * limit, [tensor(Role.OUTPUT, "", 1.0)]))
        except RecorderError as error:
            print(error)
        fill(ring, range(3, 5))
        print(seqs(ring) == scan(ring.path).table.column("seq").to_pylist() == [0, 1, 2, 3, 4])
        """,
        str(tmp_path),
    )
    said, _ = child.communicate()
    assert "cannot write the ring: File too large" in said
    assert said.endswith("True\n")


# files that are no rings


def broken(directory: Path, kind: str) -> Path:
    ring = new_ring(directory)
    fill(ring, range(3))
    whole, path = ring.path.read_bytes(), directory / f"{kind}.ring"
    contents = {
        "empty": b"",
        "text": b"this is no ring\n" * 1000,
        "short": whole[:100],
        "without slots": whole[:HEADER_SIZE],
        "unfinished": bytes(8) + whole[8:],
        "newer": whole[:8] + b"\7" + whole[9:],
        "header": whole[:60] + b"?" + whole[61:],
        "capacity": whole[:16] + b"\xff" * 8 + whole[24:],
    }
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(contents[kind])
    return path


@pytest.mark.parametrize(
    ("kind", "problem"),
    {
        "missing": "no such file",
        "directory": "a directory",
        "empty": "the file is empty",
        "text": "not a ring",
        "short": "not a ring",
        "without slots": "cut off",
        "unfinished": "not a ring",
        "newer": "was written by a newer Overflight (ring version 7), this one reads 1: upgrade",
        "header": "damaged",
        "capacity": "damaged",
    }.items(),
)
def test_a_bad_file_is_one_sentence_that_names_it(tmp_path: Path, kind: str, problem: str) -> None:
    path = broken(tmp_path, kind)
    with pytest.raises(DumpError) as caught:
        scan(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert problem in said
    assert "\n" not in said


@pytest.mark.parametrize("info", ["", "[]", '{"run_id": "a", "warnings": 7}'])
def test_metadata_that_is_not_ours_is_an_error(ring: Ring, info: str) -> None:
    ring._names.set_info(info or "{")
    with pytest.raises(DumpError, match="run metadata"):
        scan(ring.path)


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def spoil(path: Path, offset: int, change: int) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ change]))
