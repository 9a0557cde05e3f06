"""Records to one Parquet file and back."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.errors import RecorderError
from recorder.inspection import damaged, open_dump
from recorder.schema import DUMP_SCHEMA, RUN_INFO_KEY, SCHEMA_VERSION, SCHEMA_VERSION_KEY, RunInfo, TriggerKind

ROW_GROUP_ROWS = 131_072

_TEXT_COLUMNS = [field.name for field in DUMP_SCHEMA if pa.types.is_dictionary(field.type)]
_NULLABLE_DTYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
_NULLABLE_COLUMNS = frozenset(
    ["numel", "num_nan", "num_posinf", "num_neginf", "num_zero", "num_subnormal", "has_nan", "has_inf"]
)
_WRITING = {
    "compression": "zstd",
    "compression_level": 3,
    "write_page_checksum": True,
    "use_dictionary": _TEXT_COLUMNS,
    # the bytes of neighbouring floats are alike by their place in the number; seq goes up by 0 or 1
    "column_encoding": {
        **{field.name: "BYTE_STREAM_SPLIT" for field in DUMP_SCHEMA if pa.types.is_floating(field.type)},
        "seq": "DELTA_BINARY_PACKED",
    },
}
_FILE_SCHEMA = DUMP_SCHEMA.with_metadata({SCHEMA_VERSION_KEY: SCHEMA_VERSION})
_T = TypeVar("_T")


class Dump(NamedTuple):
    """A dump as it was read. table: DUMP_SCHEMA's columns, and then any that a newer minor version has added."""

    table: pa.Table
    info: RunInfo


class DumpWriter:
    """Writes one dump, which cannot be seen until it is closed, and never over another.

    Args:
        path: where the dump is to be; `-2`, `-3` and so on is added to its name where that is taken.

    Raises:
        RecorderError: from every method when the disk refuses; nothing is left behind then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            self._file = self._temporary.open("xb")
        except OSError as error:
            raise self._refusal(error) from None
        self._writer = pq.ParquetWriter(self._file, _FILE_SCHEMA, **_WRITING)

    def write(self, table: pa.Table) -> None:
        """Add rows of DUMP_SCHEMA."""
        self._tried(lambda: self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS))

    def close(self, info: RunInfo) -> Path:
        """Add the metadata and make the dump visible; returns its path."""
        return self._tried(lambda: self._close(info))

    def abandon(self) -> None:
        """Give up; nothing is left behind."""
        with contextlib.suppress(Exception):  # Arrow writes a footer as it closes, and the disk may be full
            self._writer.close()
        self._writer.is_open = False  # or it would try again when it is collected
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _close(self, info: RunInfo) -> Path:
        self._writer.add_key_value_metadata({RUN_INFO_KEY.decode(): info.to_json()})
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = _move(self._temporary, self._path)
        _sync_directory(path.parent)
        return path

    def _tried(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except (OSError, pa.ArrowException) as error:
            self.abandon()
            raise self._refusal(error) from None
        except BaseException:
            self.abandon()
            raise

    def _refusal(self, error: Exception) -> RecorderError:
        return RecorderError(f"{self._path}: cannot write the dump: {getattr(error, 'strerror', None) or error}")


def write_dump(path: Path, table: pa.Table, info: RunInfo) -> Path:
    """Write rows of DUMP_SCHEMA as one dump; returns its path, see `DumpWriter`.

    Raises:
        RecorderError: the disk refuses.
    """
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
    path = Path(path)
    file, info = open_dump(path)
    with file:
        try:
            return Dump(_in_order(file.read()), info)
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, error) from None


def read_info(path: Path | str) -> RunInfo:
    """The metadata of a dump; reads no records.

    Raises:
        DumpError: the file is not a readable dump.
    """
    file, info = open_dump(Path(path))
    file.close()
    return info


def read_table(path: Path | str, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """The records of a dump. columns: only these; filters: as `pyarrow.parquet.read_table` takes them.

    Raises:
        DumpError: the file is not a readable dump.
    """
    path = Path(path)
    if columns is None and filters is None:
        return read_dump(path).table
    read_info(path)
    try:
        return pq.read_table(
            path,
            columns=None if columns is None else list(columns),
            filters=filters,
            partitioning=None,  # a directory called batch=3 must not become a column
            page_checksum_verification=True,
        )
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, pa.ArrowKeyError) or "No match for FieldRef" in str(error):
            raise  # the caller asked for a column that no dump has
        raise damaged(path, error) from None


def to_frame(table: pa.Table) -> pd.DataFrame:
    """The table for pandas: text as categories, what may be null as Int64 or boolean, and NaN for a null float."""
    return pd.DataFrame({name: _series(name, table.column(name)) for name in table.column_names})


def _series(name: str, column: pa.ChunkedArray) -> pd.Series[Any]:
    mapper = _NULLABLE_DTYPES.get if name in _NULLABLE_COLUMNS else None
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    series: pd.Series[Any] = column.to_pandas(types_mapper=mapper)
    return series


def _in_order(table: pa.Table) -> pa.Table:
    """DUMP_SCHEMA's columns first, in its order and of its types, then the others."""
    extra = [name for name in table.column_names if name not in DUMP_SCHEMA.names]
    columns = [_typed(table.column(field.name), field.type) for field in DUMP_SCHEMA]
    fields = [*DUMP_SCHEMA, *(table.schema.field(name) for name in extra)]
    return pa.table([*columns, *(table.column(name) for name in extra)], schema=pa.schema(fields))


def _typed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return column.cast(kind.value_type).dictionary_encode()


def _move(source: Path, target: Path) -> Path:
    """Give the file its name, or the next that is free; never over another."""
    for number in itertools.count(1):
        candidate = target if number == 1 else target.with_name(f"{target.stem}-{number}{target.suffix}")
        try:
            _rename_to_free(source, candidate)
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("unreachable")


def _rename_to_free(source: Path, target: Path) -> None:
    """Raises FileExistsError where the name is taken: a plain rename would replace what is there."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except (OSError, AttributeError):  # a file system without hard links: take the name first, then fill it
        target.open("xb").close()
        os.replace(source, target)
    else:
        source.unlink()


def _sync_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can open a directory
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
