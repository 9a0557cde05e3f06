"""The rows of a dump as arrays, and single records as plain values. Nothing here judges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]

_FLAT_SHAPE = re.compile(r"\((\d+(?:, ?\d+)*)?,?\)")


@dataclass(frozen=True)
class Value:
    """One record; a number is None where it was not measured, a text "" where there is none."""

    batch: int = 0
    step: int = 0
    seq: int = 0
    call: int = 0
    phase: str = "forward"
    training: bool = True
    module: str = ""
    module_class: str = ""
    role: str = ""
    key: str = ""
    dtype: str = ""
    shape: str = ""
    numel: int | None = None
    abs_min: float | None = None
    abs_max: float | None = None
    num_nan: int = 0
    num_posinf: int = 0
    num_neginf: int = 0
    flagged: bool = False
    expected: bool = False

    @property
    def is_bad(self) -> bool:
        return self.flagged and not self.expected

    @property
    def num_inf(self) -> int:
        return self.num_posinf + self.num_neginf

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape as numbers; None where it is not a plain one."""
        found = _FLAT_SHAPE.fullmatch(self.shape)
        return tuple(int(size) for size in re.findall(r"\d+", self.shape)) if found else None


class Rows:
    """A dump's records of one rank, sorted by seq, column by column. A column that is missing is all null."""

    def __init__(self, records: pd.DataFrame, rank: int = 0) -> None:
        self._records = _in_order(_of_rank(records, rank))
        self._numbers: dict[str, Floats] = {}
        self._texts: dict[str, tuple[npt.NDArray[Any], list[str]]] = {}

    def __len__(self) -> int:
        return len(self._records)

    @cached_property
    def seq(self) -> Ints:
        return self.whole("seq")

    @cached_property
    def batch(self) -> Ints:
        return self.whole("batch")

    @cached_property
    def bad(self) -> Mask:
        """Flagged, and by no rule expected."""
        return self.truth("flagged") & ~self.truth("expected")

    def number(self, name: str) -> Floats:
        """A column as floats, NaN where null."""
        if name not in self._numbers:
            self._numbers[name] = _floats(self._records, name)
        return self._numbers[name]

    def whole(self, name: str) -> Ints:
        """A column as whole numbers, -1 where null."""
        return np.nan_to_num(self.number(name), nan=-1.0, posinf=-1.0, neginf=-1.0).astype(np.int64)

    def truth(self, name: str) -> Mask:
        """A column as booleans, False where null."""
        if name not in self._records:
            return np.zeros(len(self), dtype=bool)
        column = self._records[name]
        return np.asarray(column if column.dtype == bool else column.astype("boolean").fillna(False), dtype=bool)

    def is_text(self, name: str, *texts: str) -> Mask:
        """Where a column holds one of these texts."""
        codes, categories = self._coded(name)
        wanted = [code for code, category in enumerate(categories) if category in texts]
        return codes == wanted[0] if len(wanted) == 1 else np.isin(codes, wanted)

    def texts(self, name: str, which: Mask | Indices) -> list[str]:
        """A column's texts where `which` says; "" where null."""
        codes, categories = self._coded(name)
        return [categories[code] if code >= 0 else "" for code in codes[which]]

    def frame_starts(self, which: Indices) -> Indices:
        """Of these ascending indices, the first of each frame."""
        seq = self.seq[which]
        return which[np.concatenate(([True], seq[1:] != seq[:-1]))] if which.size else which

    def distinct(self, name: str, which: Mask | Indices) -> set[str]:
        codes, categories = self._coded(name)
        return {categories[code] for code in np.unique(codes[which]) if code >= 0}

    def values(self, which: Mask | Indices) -> tuple[Value, ...]:
        """The records where `which` says. For a few: each becomes a Python object."""
        indices = np.flatnonzero(which) if which.dtype == bool else which
        return tuple(self._value(int(index)) for index in indices)

    def _value(self, index: int) -> Value:
        numel = self._whole_at("numel", index)
        return Value(
            batch=self._whole_at("batch", index),
            step=self._whole_at("step", index),
            seq=self._whole_at("seq", index),
            call=self._whole_at("call", index),
            phase=self._text_at("phase", index),
            module=self._text_at("module", index),
            module_class=self._text_at("module_class", index),
            role=self._text_at("role", index),
            key=self._text_at("key", index),
            dtype=self._text_at("dtype", index),
            shape=self._text_at("shape", index),
            num_nan=max(self._whole_at("num_nan", index), 0),
            num_posinf=max(self._whole_at("num_posinf", index), 0),
            num_neginf=max(self._whole_at("num_neginf", index), 0),
            numel=numel if numel >= 0 else None,
            abs_min=_or_none(self.number("abs_min")[index]),
            abs_max=_or_none(self.number("abs_max")[index]),
            training=self._truth_at("training", index),
            flagged=self._truth_at("flagged", index),
            expected=self._truth_at("expected", index),
        )

    def _whole_at(self, name: str, index: int) -> int:
        number = self.number(name)[index]
        return int(number) if np.isfinite(number) else -1

    def _text_at(self, name: str, index: int) -> str:
        codes, categories = self._coded(name)
        return categories[codes[index]] if codes[index] >= 0 else ""

    def _truth_at(self, name: str, index: int) -> bool:
        if name not in self._records:
            return False
        cell: Any = self._records[name].iloc[index]
        return False if pd.isna(cell) else bool(cell)

    def _coded(self, name: str) -> tuple[npt.NDArray[Any], list[str]]:
        if name not in self._texts:
            self._texts[name] = _codes(self._records, name)
        return self._texts[name]


def _of_rank(records: pd.DataFrame, rank: int) -> pd.DataFrame:
    """One rank's rows where a table holds several; all of them where it holds none of this rank."""
    if "rank" not in records or records.empty:
        return records
    own = _floats(records, "rank") == rank
    return records[own] if own.any() and not own.all() else records


def _in_order(records: pd.DataFrame) -> pd.DataFrame:
    seq = np.nan_to_num(_floats(records, "seq"), nan=-1.0)
    return records if (seq[1:] >= seq[:-1]).all() else records.iloc[np.argsort(seq, kind="stable")]


def _floats(records: pd.DataFrame, name: str) -> Floats:
    if name not in records:
        return np.full(len(records), np.nan)
    column = pd.to_numeric(records[name], errors="coerce")
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))


def _codes(records: pd.DataFrame, name: str) -> tuple[npt.NDArray[Any], list[str]]:
    if name not in records:
        return np.full(len(records), -1), []
    column = records[name].astype("category")
    return np.asarray(column.cat.codes), [str(category) for category in column.cat.categories]


def _or_none(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
