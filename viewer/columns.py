"""The records of a dump as columns that numpy can filter a million of in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recorder.schema import DUMP_SCHEMA, DtypeLimits

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Records:
    """Rows of DUMP_SCHEMA in the order of their frames; never changed, so it can be shared."""

    def __init__(self, table: pa.Table) -> None:
        """table: rows of DUMP_SCHEMA in any order; further columns are left out.

        Raises:
            ValueError: a column is missing or of another type.
        """
        self.table = _in_order(_normal(table))

    @classmethod
    def empty(cls) -> Records:
        """No records."""
        return cls(DUMP_SCHEMA.empty_table())

    @classmethod
    def of_many(cls, tables: Iterable[pa.Table]) -> Records:
        """The records of several dumps of one rank, each once though two dumps may hold it."""
        joined = cls(pa.concat_tables([_normal(table) for table in tables]))
        return cls(joined.table.filter(pa.array(_first_of_each(joined))))

    @staticmethod
    def check(table: pa.Table) -> None:
        """Nothing, if these are rows of DUMP_SCHEMA.

        Raises:
            ValueError: a column is missing or of another type.
        """
        _normal(table.slice(0, 0))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def codes(self, name: str) -> Ints:
        """A text column as positions in `texts(name)`; -1 where there is none. int64 of shape (rows,)."""
        column = self._chunk(name)
        return np.asarray(pc.fill_null(column.indices, -1).to_numpy(zero_copy_only=False)).astype(np.int64)

    def texts(self, name: str) -> list[str]:
        """The different texts of a text column."""
        return [str(text) for text in self._chunk(name).dictionary.to_pylist()]

    def used(self, name: str) -> list[str]:
        """Those texts of a text column that some row has, in order of first use."""
        codes = self.codes(name)
        found, first = np.unique(codes[codes >= 0], return_index=True)
        texts = self.texts(name)
        return [texts[found[i]] for i in np.argsort(first)]

    def numbers(self, name: str) -> Floats:
        """A numeric column, nan where it was not computed. float64 of shape (rows,)."""
        return np.asarray(self._chunk(name).to_numpy(zero_copy_only=False), dtype=np.float64)

    def whole(self, name: str) -> Ints:
        """An integer column, -1 where there is none. int64 of shape (rows,)."""
        return np.asarray(pc.fill_null(self._chunk(name), -1).to_numpy(zero_copy_only=False)).astype(np.int64)

    def truth(self, name: str) -> Mask:
        """A boolean column, False where it is not known. bool of shape (rows,)."""
        return np.asarray(pc.fill_null(self._chunk(name), False).to_numpy(zero_copy_only=False), dtype=np.bool_)

    def is_text(self, name: str, wanted: Iterable[str]) -> Mask:
        """Where a text column has one of the texts. bool of shape (rows,)."""
        chosen = frozenset(wanted)
        return self.looked_up(name, [text in chosen for text in self.texts(name)])

    def looked_up(self, name: str, answers: list[bool]) -> Mask:
        """One answer for each of `texts(name)`, spread over the rows. bool of shape (rows,)."""
        return np.array([*answers, False], dtype=np.bool_)[self.codes(name)]

    def headroom(self, finfo: dict[str, DtypeLimits], rows: Ints | None = None) -> Floats:
        """log2(max of the dtype / abs max), nan where there is no answer. float64, one for each row or of `rows`."""
        limits = [finfo[text].max if text in finfo else np.nan for text in self.texts("dtype")]
        which = slice(None) if rows is None else rows
        limit = np.array([*limits, np.nan])[self.codes("dtype")[which]]
        abs_max = self.numbers("abs_max")[which]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(abs_max > 0, np.log2(limit) - np.log2(abs_max), np.nan)

    def take(self, rows: Ints, columns: Iterable[str] | None = None) -> pa.Table:
        """Some rows, in that order."""
        table = self.table if columns is None else self.table.select(list(columns))
        return table.take(pa.array(rows))

    def _chunk(self, name: str) -> Any:
        column = self.table.column(name)
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _normal(table: pa.Table) -> pa.Table:
    try:
        return table.select(DUMP_SCHEMA.names).cast(DUMP_SCHEMA)
    except (KeyError, pa.ArrowException) as error:
        raise ValueError(f"its columns are not those of a dump ({error})") from None


def _in_order(table: pa.Table) -> pa.Table:
    table = table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
    seq = table.column("seq").to_numpy()
    if len(seq) < 2 or bool(np.all(seq[1:] >= seq[:-1])):
        return table
    return table.take(pa.array(np.argsort(seq, kind="stable"))).combine_chunks()


def _first_of_each(records: Records) -> Mask:
    """Where a row is the first of its frame, role and key."""
    place = np.stack([records.whole("seq"), records.codes("role"), records.codes("key")])
    order = np.lexsort(place[::-1])
    same = np.all(place[:, order[1:]] == place[:, order[:-1]], axis=0)
    first = np.ones(len(records), dtype=np.bool_)
    first[order[1:][same]] = False
    return first
