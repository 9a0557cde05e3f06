"""The records of a dump or run as CSV, JSON or Parquet, for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recorder.schema import DUMP_SCHEMA, RUN_INFO_KEY, SCHEMA_VERSION, SCHEMA_VERSION_KEY
from viewer.runs import Run, first_overflow, load, load_run
from viewer.strict_json import dumps

_PIECE = 10_000


def export(run: Run, format_name: str, output: Path | None) -> int:
    """Write all records of the run, each once; to standard output without `output`. Returns how many there are.

    json: an array of objects; a number that was not computed is null. csv: it is empty. parquet: a dump again, with the
    metadata of the first overflow dump, else of the last.

    Raises:
        DumpError: a file of the run can't be read. OSError: the output can't be written.
    """
    if format_name == "parquet":
        return _export_parquet(run, output)
    records = load_run(run)
    if output is None:
        _write_text(records, format_name, sys.stdout)
        return len(records)
    with output.open("w", encoding="utf-8", newline="") as file:
        _write_text(records, format_name, file)
    return len(records)


def _write_text(records: pd.DataFrame, format_name: str, file: IO[str]) -> None:
    if format_name == "csv":
        records.to_csv(file, index=False, lineterminator="\n")
    else:
        _write_json(records, file)


def _write_json(records: pd.DataFrame, file: IO[str]) -> None:
    """In pieces, and not by pandas, which rounds to 15 digits."""
    table = pa.Table.from_pandas(records, preserve_index=False)
    names, separator = table.column_names, "[\n"
    for start in range(0, table.num_rows, _PIECE):
        columns = [column.to_pylist() for column in table.slice(start, _PIECE).columns]
        for row in zip(*columns, strict=True):
            file.write(separator + dumps(dict(zip(names, row, strict=True))))
            separator = ",\n"
    file.write("\n]\n" if table.num_rows else "[]\n")


def _export_parquet(run: Run, output: Path | None) -> int:
    table = _table(run)
    pq.write_table(table, sys.stdout.buffer if output is None else output, compression="zstd")
    return int(table.num_rows)


def _table(run: Run) -> pa.Table:
    """The records with a dump's metadata."""
    records = load_run(run)
    source = first_overflow(run) or (run.dumps or run.rings)[-1]
    table, info = load(source)
    if len(run.dumps or run.rings) > 1:
        table = pa.Table.from_pandas(records, schema=DUMP_SCHEMA, preserve_index=False)
    pairs = {SCHEMA_VERSION_KEY: SCHEMA_VERSION.encode(), RUN_INFO_KEY: info.to_json().encode()}
    return table.replace_schema_metadata(pairs)
