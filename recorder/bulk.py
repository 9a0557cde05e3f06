"""Many frames to slots at once: columns instead of records, and no work twice for what repeats."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from recorder.encoding import (
    EXPECTED,
    FLOATS,
    NUM_STATISTICS,
    ORIGIN,
    ORIGIN_ROLES,
    RECOMPUTE,
    SLOT,
    TRAINING,
    Slots,
)
from recorder.names import NameLog
from recorder.records import Frame, Statistics, TensorRecord
from recorder.schema import Role

_NUM_FIELDS = len(TensorRecord._fields)
_SITE_FIELDS = slice(5, 9)  # phase, module, module_class and depth of a Frame
_Ids = npt.NDArray[np.uint32]


class BulkEncoder:
    """Turns frames into slots that have no position and no checksum yet.

    A training step repeats the last one: when the names of a bulk equal those of the one before, which is one
    comparison of identical objects, their numbers are the same too.
    """

    def __init__(self, names: NameLog) -> None:
        self._names = names
        self._last_places: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self._place_ids = _ids([])
        self._last_sites: list[tuple[Any, ...]] = []
        self._site_ids = _ids([])

    def encode(self, frames: Sequence[Frame]) -> Slots:
        """One slot a record, in order. Shape (n,).

        Raises:
            RecorderError: a new name did not fit on the disk.
        """
        columns = list(zip(*frames, strict=True))
        fields = list(chain.from_iterable(chain.from_iterable(columns[11])))
        roles, keys, layouts, statistics, expected = (fields[i::_NUM_FIELDS] for i in range(_NUM_FIELDS))
        slots: Slots = np.zeros(len(roles), SLOT)
        if not roles:
            return slots
        counts = np.fromiter(map(len, columns[11]), np.int64, len(frames))
        self._fill_frames(slots, columns, counts)
        slots["place"] = self._places(roles, keys, layouts)
        _fill_statistics(slots, statistics)
        if any(expected):
            slots["flags"] |= np.where(np.fromiter(expected, np.bool_, len(expected)), np.uint32(EXPECTED), 0)
        if any(columns[12]):
            _mark_origins(slots, np.repeat(np.array(columns[12], np.bool_), counts), roles)
        return slots

    def _fill_frames(self, slots: Slots, columns: list[tuple[Any, ...]], counts: npt.NDArray[np.int64]) -> None:
        for index, name in ((0, "batch"), (1, "step"), (2, "seq"), (3, "call"), (4, "t_ns")):
            slots[name] = np.repeat(_packed(columns[index], "q"), counts)
        flags = np.array(columns[9], np.bool_) * np.uint32(TRAINING) | np.array(columns[10], np.bool_) * np.uint32(
            RECOMPUTE
        )
        slots["flags"] = np.repeat(flags, counts)
        slots["site"] = np.repeat(self._sites(columns[_SITE_FIELDS]), counts)

    def _sites(self, columns: list[tuple[Any, ...]]) -> _Ids:
        if columns != self._last_sites:
            get, add = self._names.site_ids.get, self._names.add_site
            ids = [_known(get(site), add, site) for site in zip(*columns, strict=True)]
            self._last_sites, self._site_ids = columns, _ids(ids)
        return self._site_ids

    def _places(self, *columns: list[Any]) -> _Ids:
        if columns != self._last_places:
            get, add = self._names.place_ids.get, self._names.add_place
            ids = [_known(get(place), add, place) for place in zip(*columns, strict=True)]
            self._last_places, self._place_ids = columns, _ids(ids)  # type: ignore[assignment]
        return self._place_ids


def _known(number: int | None, add: Any, name: tuple[Any, ...]) -> int:
    return add(*name) if number is None else number


def _ids(numbers: list[int]) -> _Ids:
    return np.array(numbers, np.uint32)


def _packed(values: Sequence[Any], kind: str) -> npt.NDArray[Any]:
    """Numbers of one type to an array; struct is four times as fast as numpy here."""
    return np.frombuffer(struct.pack(f"<{len(values)}{kind}", *values), "<f8" if kind == "d" else "<i8")


def _fill_statistics(slots: Slots, statistics: list[Statistics]) -> None:
    numbers: list[float | None] = list(chain.from_iterable(statistics))
    for bit, name in enumerate(Statistics._fields):
        values = numbers[bit::NUM_STATISTICS]
        if values[0] is None and values.count(None) == len(values):
            slots["flags"] |= np.uint32(1 << bit)
        elif values[0] != 0 or values.count(0) < len(values):
            _fill_statistic(slots, name, bit, values)


def _fill_statistic(slots: Slots, name: str, bit: int, values: list[float | None]) -> None:
    kind = "d" if name in FLOATS else "q"
    try:
        slots[name] = _packed(values, kind)
    except struct.error:  # some are None: looking for them first costs more than all the rest
        slots[name] = _packed([0 if value is None else value for value in values], kind)
        is_null = np.fromiter((value is None for value in values), np.uint32, len(values))
        slots["flags"] |= is_null << np.uint32(bit)


def _mark_origins(slots: Slots, in_origin: npt.NDArray[np.bool_], roles: list[Role]) -> None:
    is_made = np.fromiter((role in ORIGIN_ROLES for role in roles), np.bool_, len(roles))
    flagged = (slots["num_nan"] != 0) | (slots["num_posinf"] != 0) | (slots["num_neginf"] != 0)
    unexpected = (slots["flags"] & EXPECTED) == 0
    slots["flags"] |= np.where(in_origin & is_made & flagged & unexpected, np.uint32(ORIGIN), np.uint32(0))
