"""The records of a dump or run as CSV, JSON or Parquet, for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from viewer.runs import Run, load, load_run
from viewer.strict_json import dumps

_PIECE = 10_000


def export(run: Run, format_name: str, output: Path | None) -> int:
    """Write all records of the run, each once; to standard output without `output`. Returns how many there are.

    json: an array of objects; a number that was not computed is null. csv: it is empty. parquet: the same schema and
    metadata as a dump when the run is a single file, else the records alone.

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
    sources = run.dumps or run.rings
    table = load(sources[0])[0] if len(sources) == 1 else pa.Table.from_pandas(load_run(run), preserve_index=False)
    pq.write_table(table, sys.stdout.buffer if output is None else output, compression="zstd")
    return int(table.num_rows)
