"""Records to one Parquet file and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.errors import DumpError, RecorderError
from recorder.schema import DUMP_SCHEMA, RUN_INFO_KEY, SCHEMA_VERSION, SCHEMA_VERSION_KEY, RunInfo, TriggerKind

ROW_GROUP_ROWS = 131_072
_TEXT_COLUMNS = [field.name for field in DUMP_SCHEMA if pa.types.is_dictionary(field.type)]
_ENCODINGS = {field.name: "BYTE_STREAM_SPLIT" for field in DUMP_SCHEMA if pa.types.is_floating(field.type)}


class Dump(NamedTuple):
    """A dump as it was read. table: rows of DUMP_SCHEMA, and any columns of a newer minor version."""

    table: pa.Table
    info: RunInfo


class DumpWriter:
    """Writes one dump, invisible until it is closed; never over another.

    Raises:
        RecorderError: the disk refuses; nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}")
        self._writer = pq.ParquetWriter(
            self._temporary,
            DUMP_SCHEMA.with_metadata({SCHEMA_VERSION_KEY: SCHEMA_VERSION}),
            compression="zstd",
            compression_level=3,
            use_dictionary=_TEXT_COLUMNS,
            column_encoding=_ENCODINGS,
            write_page_checksum=True,
        )

    def write(self, table: pa.Table) -> None:
        """Add rows of DUMP_SCHEMA."""
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def close(self, info: RunInfo) -> Path:
        """Add the metadata and make the dump visible; its path, which has a number added where it was taken."""
        self._writer.add_key_value_metadata({RUN_INFO_KEY.decode(): info.to_json()})
        self._writer.close()
        _sync(self._temporary)
        path = _move(self._temporary, self._path)
        _sync(path.parent)
        return path

    def abandon(self) -> None:
        """Give up; nothing is left behind."""
        self._writer.close()
        self._temporary.unlink(missing_ok=True)


def write_dump(path: Path, table: pa.Table, info: RunInfo) -> Path:
    """Write one dump; its path, which has a number added where it was taken."""
    writer = DumpWriter(path)
    writer.write(table)
    return writer.close(info)


def dump_name(kind: str, batch: int | None, rank: int) -> str:
    """ "overflow-batch000012-rank0000.parquet"; the batch is left out where a kind has none."""
    word = "trace" if kind == TriggerKind.TRACED_BATCH.value else kind
    place = "" if batch is None else f"-batch{batch:06d}"
    return f"{word}{place}-rank{rank:04d}.parquet"


def read_dump(path: Path | str) -> Dump:
    """The records and the metadata of a dump.

    Raises:
        DumpError: the file is not a readable dump.
    """
    return Dump(read_table(path), read_info(path))


def read_info(path: Path | str) -> RunInfo:
    """The metadata of a dump; reads no records.

    Raises:
        DumpError: the file is not a readable dump.
    """
    return _check_metadata(Path(path), _metadata(Path(path)))


def read_table(path: Path | str, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The records of a dump. filters: as `pyarrow.parquet.read_table` takes them.

    Raises:
        DumpError: the file is not a readable dump.
    """
    path = Path(path)
    read_info(path)
    try:
        return pq.read_table(path, columns=columns, filters=filters, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise DumpError(path, f"damaged: {error}") from None


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table as pandas sees it: text as categories, integers with nulls as Int64, floats with NaN for null."""
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def _metadata(path: Path) -> pq.FileMetaData:
    if not path.exists():
        raise DumpError(path, "no such file")
    try:
        return pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise DumpError(path, f"not Parquet: {error}") from None


def _check_metadata(path: Path, metadata: pq.FileMetaData) -> RunInfo:
    pairs = metadata.metadata or {}
    if SCHEMA_VERSION_KEY not in pairs:
        raise DumpError(path, "a Parquet file, but not a dump of Overflight")
    version = pairs[SCHEMA_VERSION_KEY].decode(errors="replace")
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise DumpError(
            path,
            f"was written by a newer Overflight (schema version {version}), this one reads {SCHEMA_VERSION}: upgrade",
        )
    return RunInfo.from_json(pairs[RUN_INFO_KEY])


def _move(source: Path, target: Path) -> Path:
    candidate, number = target, 1
    while True:
        try:
            os.link(source, candidate)
            source.unlink()
            return candidate
        except FileExistsError:
            number += 1
            candidate = target.with_name(f"{target.stem}-{number}{target.suffix}")
        except OSError as error:
            raise RecorderError(f"{candidate}: cannot write the dump: {error.strerror}") from None


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
