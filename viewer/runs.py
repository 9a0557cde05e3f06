"""Find, check and open runs and dumps. All untrusted input comes in here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.dump import read_dump, read_info, to_frame
from recorder.errors import DumpError
from recorder.ring import scan
from recorder.ring_file import RingState
from recorder.schema import RunInfo, TriggerKind

DUMP_SUFFIX = ".parquet"
RING_SUFFIX = ".ring"
RUN_FILE = "_run.json"


@dataclass(frozen=True)
class DumpFile:
    """One dump, known by its metadata alone. size: bytes; mtime: seconds since the epoch."""

    path: Path
    info: RunInfo
    num_rows: int
    size: int
    mtime: float


@dataclass(frozen=True)
class RingFile:
    """One ring. size: bytes; mtime: seconds since the epoch.

    alive: its process still writes it; closed: its run has ended as it should. Neither: a killed process left it.
    """

    path: Path
    info: RunInfo
    num_rows: int
    size: int
    mtime: float
    alive: bool
    closed: bool

    @property
    def left_behind(self) -> bool:
        return not self.alive and not self.closed and self.num_rows > 0


@dataclass(frozen=True)
class Run:
    """One recording session as it lies in one directory.

    info: what `_run.json` says, None without one; info_mtime: when that was written, in seconds since the epoch.
    problems: (path, sentence) of each file that could not be read.
    """

    run_id: str
    directory: Path
    dumps: tuple[DumpFile, ...] = ()
    rings: tuple[RingFile, ...] = ()
    info: RunInfo | None = None
    info_mtime: float = 0.0
    problems: tuple[tuple[Path, str], ...] = ()

    @property
    def readable(self) -> bool:
        return bool(self.dumps or self.rings or self.info)

    @property
    def mtime(self) -> float:
        """When its newest file was written, in seconds since the epoch; 0 where there is none."""
        files: list[DumpFile | RingFile] = [*self.dumps, *self.rings]
        return max([self.info_mtime, *(file.mtime for file in files)])


def open_paths(paths: Iterable[Path | str]) -> list[Run]:
    """The runs in dumps, rings, run directories and directories of runs, oldest first; reads metadata only.

    A broken file inside a directory becomes one of its run's `problems`; one that is named itself is an error.

    Raises:
        DumpError: a path is missing or unreadable, or a directory holds nothing to read.
    """
    runs: dict[tuple[Path, str], Run] = {}
    for path in paths:
        for run in _open_path(Path(path)):
            place = (run.directory, run.run_id)
            runs[place] = _joined(runs[place], run) if place in runs else run
    return sorted(runs.values(), key=lambda run: (run.mtime, run.run_id))


def load(source: DumpFile | RingFile | Path) -> tuple[pa.Table, RunInfo]:
    """The records and metadata of one dump or ring.

    Raises:
        DumpError: the file is not a readable dump or ring.
    """
    path = source if isinstance(source, Path) else source.path
    if path.suffix == RING_SUFFIX:
        contents = scan(path)
        return contents.table, contents.info
    dump = read_dump(path)
    return dump.table, dump.info


def load_run(run: Run) -> pd.DataFrame:
    """All records of a run in the order of their frames, each once though several dumps may hold it.

    Raises:
        DumpError: a file of the run is not readable, or the run has no records at all.
    """
    sources = run.dumps or run.rings
    if not sources:
        raise DumpError(run.directory, "this run has written no dump yet, so it has no records to read")
    frames = pd.concat([to_frame(load(source)[0]) for source in sources], ignore_index=True)
    once = frames.drop_duplicates(subset=["rank", "seq", "t_ns", "role", "key"])
    return once.sort_values(["rank", "t_ns", "seq"], kind="stable", ignore_index=True)


def first_overflow(run: Run) -> DumpFile | None:
    """The overflow dump whose trigger came first; None when nothing overflowed."""
    found = [dump for dump in run.dumps if kind_of(dump) == TriggerKind.OVERFLOW.value]
    return min(found, key=_trigger_order, default=None)


def kind_of(dump: DumpFile) -> str | None:
    """The kind of a dump's trigger."""
    return dump.info.trigger.kind if dump.info.trigger else None


def _trigger_order(dump: DumpFile) -> tuple[float, float, float]:
    trigger = dump.info.trigger
    batch = None if trigger is None else trigger.batch
    seq = None if trigger is None else trigger.seq
    last = float("inf")
    return (last if batch is None else batch, last if seq is None else seq, dump.mtime)


def _open_path(path: Path) -> list[Run]:
    path = path.absolute()
    try:
        if path.is_dir():
            return _open_directory(path)
        return [_run_of_file(path)]
    except OSError as error:
        raise DumpError(path, _reason(error)) from None


def _run_of_file(path: Path) -> Run:
    _check_file(path)
    if path.suffix == RING_SUFFIX:
        ring = _ring_file(path)
        return Run(ring.info.run_id, path.parent, rings=(ring,))
    dump = _dump_file(path)
    return Run(dump.info.run_id, path.parent, dumps=(dump,))


def _check_file(path: Path) -> None:
    if not path.exists():
        raise DumpError(path, "no such file or directory")
    if not path.is_file():
        raise DumpError(path, "not a regular file")
    if path.stat().st_size == 0:
        raise DumpError(path, "the file is empty")


def _open_directory(root: Path) -> list[Run]:
    problems: list[tuple[Path, str]] = []
    runs: list[Run] = []
    for directory, names in _directories(root, problems):
        runs += _runs_of_directory(directory, names)
    problems += [problem for run in runs for problem in run.problems]
    if not any(run.readable for run in runs):
        raise _nothing_readable(root, problems)
    return runs


def _directories(root: Path, problems: list[tuple[Path, str]]) -> Iterator[tuple[Path, list[str]]]:
    def note(error: OSError) -> None:
        problems.append((Path(error.filename or root), _reason(error)))

    for directory, below, names in os.walk(root, onerror=note):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield Path(directory), sorted(name for name in names if not name.startswith("."))


def _nothing_readable(root: Path, problems: list[tuple[Path, str]]) -> DumpError:
    if not problems:
        return DumpError(root, "a directory without dumps: no .parquet or .ring file in it or below it")
    path, sentence = problems[0]
    if len(problems) == 1:
        return DumpError(path, sentence)
    return DumpError(root, f"none of its {len(problems)} files can be read; the first is {path.name}: {sentence}")


def _runs_of_directory(directory: Path, names: list[str]) -> list[Run]:
    """One run for each run id among the files of one directory; what can't be read goes to the first of them."""
    found: dict[str, Run] = {}
    problems: list[tuple[Path, str]] = []
    for path in (directory / name for name in names):
        try:
            part = _part_of_run(path)
        except DumpError as error:
            problems.append((path, error.problem))
            continue
        except OSError as error:
            problems.append((path, _reason(error)))
            continue
        if part is not None:
            found[part.run_id] = _joined(found[part.run_id], part) if part.run_id in found else part
    if problems:
        first = next(iter(found), directory.name)
        broken = Run(first, directory, problems=tuple(problems))
        found[first] = _joined(found[first], broken) if first in found else broken
    return list(found.values())


def _part_of_run(path: Path) -> Run | None:
    """What one file adds to its run; None for a file that is no business of ours."""
    if path.name == RUN_FILE:
        info = _read_run_file(path)
        return Run(info.run_id, path.parent, info=info, info_mtime=path.stat().st_mtime)
    if path.suffix in (DUMP_SUFFIX, RING_SUFFIX):
        return _run_of_file(path)
    return None


def _read_run_file(path: Path) -> RunInfo:
    try:
        return RunInfo.from_json(path.read_bytes())
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise DumpError(path, "not the metadata of a run (expected the JSON that the recorder writes)") from None


def _dump_file(path: Path) -> DumpFile:
    info = read_info(path)
    stat = path.stat()
    return DumpFile(path, info, pq.read_metadata(path).num_rows, stat.st_size, stat.st_mtime)


def _ring_file(path: Path) -> RingFile:
    contents = scan(path)
    stat = path.stat()
    return RingFile(
        path,
        contents.info,
        contents.table.num_rows,
        stat.st_size,
        stat.st_mtime,
        alive=contents.alive and contents.state is RingState.OPEN,
        closed=contents.state is RingState.CLEAN,
    )


def _joined(a: Run, b: Run) -> Run:
    dumps = {dump.path: dump for dump in (*a.dumps, *b.dumps)}
    rings = {ring.path: ring for ring in (*a.rings, *b.rings)}
    return Run(
        a.run_id,
        a.directory,
        dumps=tuple(sorted(dumps.values(), key=lambda dump: (*_trigger_order(dump), dump.path))),
        rings=tuple(rings.values()),
        info=a.info or b.info,
        info_mtime=max(a.info_mtime, b.info_mtime),
        problems=tuple(dict((*a.problems, *b.problems)).items()),
    )


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
