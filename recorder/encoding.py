"""How one record lies in a slot of the ring, and how many slots become one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recorder.names import Names
from recorder.records import Statistics
from recorder.schema import DUMP_SCHEMA, Role

Slots = npt.NDArray[np.void]
"""Shape (n,), dtype SLOT."""

ORIGIN_ROLES = (Role.OUTPUT, Role.GRAD_INPUT)
"""What a module makes, forward and backward: where a bad value of an origin frame was born."""

FLOATS, COUNTS = Statistics._fields[:4], Statistics._fields[4:]

SLOT = np.dtype(
    [
        ("position", "<u8"),  # 1 for the first record ever appended; 0 while the slot is being written
        ("checksum", "<u4"),
        # the same for all records of a frame
        ("batch", "<i8"),
        ("seq", "<i8"),
        ("t_ns", "<i8"),
        ("step", "<u4"),
        ("call", "<i4"),
        ("site", "<u4"),
        # a record's own; what a healthy one has no need of comes last and is 0
        ("place", "<u4"),
        ("flags", "<u4"),
        *((name, "<f8") for name in FLOATS),
        *((name, "<i8") for name in COUNTS),
    ]
)
SLOT_SIZE = SLOT.itemsize
WORDS_PER_SLOT = SLOT_SIZE // 8
BODY_OFFSET, OWN_OFFSET = 12, 48

# The flags: one bit for each statistic that is null, in the order of Statistics, then the booleans.
NUM_STATISTICS = len(Statistics._fields)
ALL_NULL = (1 << NUM_STATISTICS) - 1
TRAINING = 1 << NUM_STATISTICS
RECOMPUTE = TRAINING << 1
EXPECTED = TRAINING << 2
ORIGIN = TRAINING << 3

# The checksum is linear: the record's own part of the body and the frame's part, each read as one little-endian
# number, and the position, each times a weight, summed modulo a prime. So the frame's part is computed once a frame,
# the zeros that end a healthy record are free, and over many slots it is one exact matrix product; a CRC has none of
# the three. It misses one torn slot in 10^9.
CHECKSUM_PRIME = 1_000_000_007
FRAME_WEIGHT, POSITION_WEIGHT = 739_242_193, 640_320_007
_FRAME_WORDS, _OWN_WORDS = (OWN_OFFSET - BODY_OFFSET) // 2, (SLOT_SIZE - OWN_OFFSET) // 2
_WORD_WEIGHTS = np.array(
    [pow(2, 16 * i, CHECKSUM_PRIME) * FRAME_WEIGHT % CHECKSUM_PRIME for i in range(_FRAME_WORDS)]
    + [pow(2, 16 * i, CHECKSUM_PRIME) for i in range(_OWN_WORDS)],
    np.float64,
)


def checksums(slots: Slots) -> npt.NDArray[np.uint32]:
    """The checksum that each slot should have, shape (n,). Sums stay below 2**53, so float64 is exact."""
    body = slots.view(np.uint8).reshape(-1, SLOT_SIZE)[:, BODY_OFFSET:].view("<u2")
    sums = (body.astype(np.float64) @ _WORD_WEIGHTS).astype(np.int64)
    mixed = (slots["position"] % CHECKSUM_PRIME).astype(np.int64) * POSITION_WEIGHT
    return ((sums + mixed) % CHECKSUM_PRIME).astype(np.uint32)


def table_of(slots: Slots, names: Names, rank: int) -> pa.Table:
    """The slots, in their order, as rows of DUMP_SCHEMA."""
    columns = {**_numbers(slots), **_booleans(slots), **_texts(slots, names)}
    columns["rank"] = pa.array(np.full(len(slots), rank, np.int32))
    return pa.Table.from_arrays([columns[name] for name in DUMP_SCHEMA.names], schema=DUMP_SCHEMA)


def _numbers(slots: Slots) -> dict[str, pa.Array]:
    plain = {name: _integers(slots[name], name) for name in ("batch", "step", "seq", "call", "t_ns")}
    statistics = {
        name: pa.array(np.ascontiguousarray(slots[name]), mask=(slots["flags"] & (1 << bit)) != 0)
        for bit, name in enumerate(Statistics._fields)
    }
    return {**plain, **statistics}


def _integers(values: npt.NDArray[Any], name: str) -> pa.Array:
    return pa.array(values.astype(DUMP_SCHEMA.field(name).type.to_pandas_dtype()))


def _booleans(slots: Slots) -> dict[str, pa.Array]:
    flags = slots["flags"]
    nan, posinf, neginf = (_known_positive(slots, name) for name in ("num_nan", "num_posinf", "num_neginf"))
    inf_null = _is_null(slots, "num_posinf") | _is_null(slots, "num_neginf")
    return {
        "training": pa.array((flags & TRAINING) != 0),
        "recompute": pa.array((flags & RECOMPUTE) != 0),
        "expected": pa.array((flags & EXPECTED) != 0),
        "origin": pa.array((flags & ORIGIN) != 0),
        "has_nan": pa.array(nan, mask=_is_null(slots, "num_nan")),
        "has_inf": pa.array(posinf | neginf, mask=inf_null),
        "flagged": pa.array(nan | posinf | neginf),
    }


def _is_null(slots: Slots, name: str) -> npt.NDArray[np.bool_]:
    is_null: npt.NDArray[np.bool_] = (slots["flags"] & (1 << Statistics._fields.index(name))) != 0
    return is_null


def _known_positive(slots: Slots, name: str) -> npt.NDArray[np.bool_]:
    positive: npt.NDArray[np.bool_] = (slots[name] != 0) & ~_is_null(slots, name)
    return positive


def _texts(slots: Slots, names: Names) -> dict[str, pa.Array]:
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
