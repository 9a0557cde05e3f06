"""Dumps, rings and run directories as one DataFrame, and dumps out of what a dead process left behind."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa

from recorder.dump import dump_name, read_table, to_frame, write_dump
from recorder.errors import DumpError
from recorder.ring import RingContents, scan
from recorder.schema import DUMP_SCHEMA, Trigger, TriggerKind

RING_SUFFIX = ".ring"

_IDENTITY = ["rank", "seq", "t_ns", "role", "key"]


def read(path: Path | str) -> pd.DataFrame:
    """The records of a dump, of a ring, or of all dumps and rings of a run directory.

    A record that several files of a directory hold is there once; a directory's rows are sorted by rank and seq.

    Raises:
        DumpError: a file is missing or unreadable, or the directory holds none.
    """
    path = Path(path)
    if not path.is_dir():
        return to_frame(_table(path))
    files = [*_files(path, "*.parquet"), *_files(path, f"*{RING_SUFFIX}")]
    if not files:
        raise DumpError(path, "a directory without dumps: no .parquet or .ring file in it")
    tables = [_table(file).select(DUMP_SCHEMA.names) for file in files]
    frame = to_frame(pa.concat_tables(tables)).drop_duplicates(_IDENTITY)
    return frame.sort_values(["rank", "seq"], kind="stable", ignore_index=True)


def recover(path: Path | str) -> list[Path]:
    """Turn each ring that a dead process left behind into a dump beside it; the paths of the dumps.

    A ring is removed once its dump is on the disk. A ring without records is removed too.

    Args:
        path: a ring, or a directory with rings in it or below it. Of a directory, a ring that is alive or unreadable
            is left as it is, with a warning.

    Raises:
        DumpError: the ring is unreadable or its process is alive, or the directory holds neither rings nor dumps.
        RecorderError: the dump cannot be written; the ring is still there.
    """
    path = Path(path)
    if not path.is_dir():
        return _recover_ring(path)
    rings = _files(path, f"**/*{RING_SUFFIX}")
    if not rings and not _files(path, "**/*.parquet"):
        raise DumpError(path, "a directory without dumps: no .parquet or .ring file in it or below it")
    return _recover_rings(rings)


def _recover_rings(rings: list[Path]) -> list[Path]:
    dumps: list[Path] = []
    problems: list[DumpError] = []
    for ring in rings:
        try:
            dumps += _recover_ring(ring)
        except DumpError as error:
            problems.append(error)
    if problems and not dumps:
        raise problems[0]
    for problem in problems:
        warnings.warn(str(problem), RuntimeWarning, stacklevel=3)
    return dumps


def _recover_ring(path: Path) -> list[Path]:
    contents = scan(path)
    if contents.alive:
        raise DumpError(path, f"its process {contents.pid} is still running; read the ring as it is, or end it first")
    dumps = [_write_recovered(path, contents)] if contents.table.num_rows else []
    path.unlink()
    return dumps


def _write_recovered(path: Path, contents: RingContents) -> Path:
    last = contents.table.slice(contents.table.num_rows - 1).to_pylist()[0]
    trigger = Trigger(TriggerKind.RECOVERED.value, last["batch"], last["step"])
    info = replace(contents.info, trigger=trigger, evicted=contents.evicted)
    name = dump_name(trigger.kind, trigger.batch, contents.rank)
    return write_dump(path.with_name(name), contents.table, info)


def _files(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for path in directory.glob(pattern) if not path.name.startswith("."))


def _table(path: Path) -> pa.Table:
    return scan(path).table if path.suffix == RING_SUFFIX else read_table(path)
