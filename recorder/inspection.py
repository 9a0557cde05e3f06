"""Whether a file is a dump, told from its footer; and if not, what is wrong with it in one sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recorder.errors import DumpError
from recorder.schema import DUMP_SCHEMA, RUN_INFO_KEY, SCHEMA_VERSION, SCHEMA_VERSION_KEY, RunInfo

_MAGIC = b"PAR1"
_SMALLEST_PARQUET = 12
_BAD_INFO = (ValueError, TypeError, AttributeError, KeyError, RecursionError)


def open_dump(path: Path) -> tuple[pq.ParquetFile, RunInfo]:
    """The dump, ready to read with its page checksums verified, and its metadata. The caller closes it.

    Raises:
        DumpError: the file is not a readable dump.
    """
    check_regular_file(path)
    _check_ends(path)
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None
    try:
        return file, _checked(path, file)
    except DumpError:
        file.close()
        raise


def check_regular_file(path: Path) -> None:
    """Raises DumpError unless the path is a file with something in it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise DumpError(path, "no such file") from None
    except OSError as error:
        raise DumpError(path, (error.strerror or str(error)).lower()) from None
    if stat.S_ISDIR(found.st_mode):
        raise DumpError(path, "a directory, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise DumpError(path, "not a regular file")
    if found.st_size == 0:
        raise DumpError(path, "the file is empty")


def info_from_json(path: Path, text: str | bytes) -> RunInfo:
    """Raises DumpError unless the text is what `RunInfo.to_json` writes."""
    try:
        return RunInfo.from_json(text)
    except _BAD_INFO:
        raise DumpError(path, "its run metadata is not the JSON that Overflight writes") from None


def damaged(path: Path, error: Exception) -> DumpError:
    """What Arrow or the system said, on one line."""
    return DumpError(path, f"the file is damaged: {' '.join(str(error).split()).rstrip('.')}")


def _check_ends(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            size = file.seek(0, os.SEEK_END)
            file.seek(-min(size, len(_MAGIC)), os.SEEK_END)
            tail = file.read()
    except OSError as error:
        raise DumpError(path, (error.strerror or str(error)).lower()) from None
    if head != _MAGIC:
        raise DumpError(path, "not a Parquet file, whatever its name says")
    if tail != _MAGIC or size < _SMALLEST_PARQUET:
        raise DumpError(path, "the file is cut off: it begins like Parquet, but its end is missing")


def _checked(path: Path, file: pq.ParquetFile) -> RunInfo:
    pairs = file.metadata.metadata or {}
    if SCHEMA_VERSION_KEY not in pairs:
        raise DumpError(path, "a Parquet file, but not a dump of Overflight: it has no overflight.schema_version")
    _check_version(path, pairs[SCHEMA_VERSION_KEY].decode(errors="replace"))
    _check_columns(path, file.schema_arrow)
    if RUN_INFO_KEY not in pairs:
        raise DumpError(path, "its run metadata is missing: it has no overflight.run")
    return info_from_json(path, pairs[RUN_INFO_KEY])


def _check_version(path: Path, version: str) -> None:
    major, ours = version.partition(".")[0], SCHEMA_VERSION.partition(".")[0]
    if major == ours:
        return
    if major.isdecimal() and int(major) > int(ours):
        problem = f"was written by a newer Overflight (schema version {version}), this one reads {ours}: upgrade"
    else:
        problem = f"has the unknown schema version {version!r}; this Overflight reads {ours}"
    raise DumpError(path, problem)


def _check_columns(path: Path, schema: pa.Schema) -> None:
    """Every column is there with its type; more columns are a newer minor version."""
    for field in DUMP_SCHEMA:
        found = schema.get_all_field_indices(field.name)
        if len(found) != 1:
            raise DumpError(path, f"not a whole dump: the column {field.name!r} is missing")
        kind = schema.field(found[0]).type
        if _plain(kind) != _plain(field.type):
            raise DumpError(path, f"not a dump: the column {field.name!r} is {kind} instead of {_plain(field.type)}")


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without the choices of whoever wrote the file."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_large_string(value) else value
