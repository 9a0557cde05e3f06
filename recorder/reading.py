"""Dumps, rings and run directories as one DataFrame, and dumps out of what a dead process left."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from recorder.dump import read_table, to_frame
from recorder.errors import DumpError
from recorder.ring import scan


def read(path: Path | str) -> pd.DataFrame:
    """The records of a dump, a ring or a run directory, sorted by rank and seq, each once.

    Raises:
        DumpError: there is nothing readable at the path.
    """
    path = Path(path)
    if not path.is_dir():
        return to_frame(_table(path))
    files = sorted([*path.glob("[!.]*.parquet"), *path.glob("*.ring")])
    if not files:
        raise DumpError(path, "a directory without dumps: no .parquet or .ring file in it")
    table = pa.concat_tables([_table(file) for file in files]).unify_dictionaries()
    frame = to_frame(table).drop_duplicates(subset=["rank", "seq", "role", "key"])
    return frame.sort_values(["rank", "seq"], kind="stable", ignore_index=True)


def _table(path: Path) -> pa.Table:
    return scan(path).table if path.suffix == ".ring" else read_table(path)
