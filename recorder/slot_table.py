"""Many slots of a ring to one table of DUMP_SCHEMA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recorder.encoding import EXPECTED, ORIGIN, PART, RECOMPUTE, SLOT, TRAINING, Slots
from recorder.names import Names
from recorder.records import Statistics
from recorder.schema import DUMP_SCHEMA

_Columns = dict[str, npt.NDArray[Any]]
_Mask = npt.NDArray[np.bool_]


def table_of(pieces: Sequence[Slots], names: Names, rank: int) -> pa.Table:
    """The slots of all pieces, in their order, as rows of DUMP_SCHEMA."""
    slots = _columns(pieces)
    made = {**_numbers(slots), **_booleans(slots), **_texts(slots, names)}
    made["rank"] = pa.array(np.full(len(slots["flags"]), rank, np.int32))
    return pa.Table.from_arrays([made[name] for name in DUMP_SCHEMA.names], schema=DUMP_SCHEMA)


def _columns(pieces: Sequence[Slots]) -> _Columns:
    """Each field on its own. In parts, as every field's pass over the slots reads all of their memory."""
    columns: _Columns = {name: np.empty(sum(map(len, pieces)), SLOT[name]) for name in SLOT.names or ()}
    end = 0
    for part in (piece[start : start + PART] for piece in pieces for start in range(0, len(piece), PART)):
        begin, end = end, end + len(part)
        for name, column in columns.items():
            column[begin:end] = part[name]
    return columns


def _numbers(slots: _Columns) -> dict[str, pa.Array]:
    plain = {name: pa.array(slots[name].astype(np.int64, copy=False)) for name in ("batch", "step", "seq", "t_ns")}
    statistics = {name: pa.array(slots[name], mask=_is_null(slots, name)) for name in Statistics._fields}
    return {**plain, **statistics, "call": pa.array(slots["call"])}


def _booleans(slots: _Columns) -> dict[str, pa.Array]:
    flags = slots["flags"]
    nan, posinf, neginf = (_known_positive(slots, name) for name in ("num_nan", "num_posinf", "num_neginf"))
    inf_unknown = _is_null(slots, "num_posinf") | _is_null(slots, "num_neginf")
    return {
        "training": pa.array((flags & TRAINING) != 0),
        "recompute": pa.array((flags & RECOMPUTE) != 0),
        "expected": pa.array((flags & EXPECTED) != 0),
        "origin": pa.array((flags & ORIGIN) != 0),
        "has_nan": pa.array(nan, mask=_is_null(slots, "num_nan")),
        "has_inf": pa.array(posinf | neginf, mask=inf_unknown),
        "flagged": pa.array(nan | posinf | neginf),
    }


def _is_null(slots: _Columns, name: str) -> _Mask:
    return np.asarray(slots["flags"] & (1 << Statistics._fields.index(name)), np.bool_)


def _known_positive(slots: _Columns, name: str) -> _Mask:
    return np.asarray(slots[name], np.bool_) & ~_is_null(slots, name)


def _texts(slots: _Columns, names: Names) -> dict[str, pa.Array]:
    sites, site_rows = _used(slots["site"], names.sites)
    places, place_rows = _used(slots["place"], names.places)
    columns = {name: _text(_column(sites, name), site_rows) for name in ("phase", "module", "module_class")}
    columns["depth"] = _lookup(_column(sites, "depth"), site_rows, pa.int16())
    for name in ("role", "key", "dtype", "shape", "device"):
        columns[name] = _text(_column(places, name), place_rows)
    columns["numel"] = _lookup(_column(places, "numel"), place_rows, pa.int64())
    return columns


def _used(ids: npt.NDArray[np.uint32], values: Sequence[Any]) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Those values that occur, and for each slot the index of its own among them."""
    used = np.flatnonzero(np.bincount(ids, minlength=len(values)))
    index = np.zeros(len(values), np.int64)
    index[used] = np.arange(len(used))
    return [values[i] for i in used.tolist()], index[ids]


def _column(rows: Sequence[Any], name: str) -> list[Any]:
    return [getattr(row, name) for row in rows]


def _text(values: list[str | None], rows: npt.NDArray[np.int64]) -> pa.Array:
    distinct: dict[str, int] = {}
    codes = pa.array([None if v is None else distinct.setdefault(v, len(distinct)) for v in values], pa.int32())
    return pa.DictionaryArray.from_arrays(codes.take(pa.array(rows)), pa.array(list(distinct), pa.string()))


def _lookup(values: list[int | None], rows: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).take(pa.array(rows))
