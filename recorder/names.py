"""The ring's string log: what a slot is too small to hold, written before the first record that uses it.

An entry is `<III` (payload capacity, payload length, CRC-32 of the payload) and the payload: one JSON array, a kind and
its fields. Names are never rewritten. The run's metadata is rewritten in place, in two entries by turns, so that
the one that a dying process leaves half written is never the only one.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from recorder.records import Layout
from recorder.schema import Phase, Role

_ENTRY = struct.Struct("<III")
_SITE, _PLACE, _INFO = "site", "place", "info"
_INFO_START = b'["info"'


class Site(NamedTuple):
    """What all records of a frame share and what repeats from batch to batch."""

    phase: str
    module: str
    module_class: str
    depth: int


class Place(NamedTuple):
    """Which tensor of its frame a record is, and what kind of tensor."""

    role: str
    key: str
    dtype: str
    shape: str | None
    device: str | None
    numel: int | None


class Names(NamedTuple):
    """Sites and places by their number, and the newest run metadata as JSON ("" when there is none)."""

    sites: list[Site]
    places: list[Place]
    info: str = ""


class NameLog:
    """The writing side. `site_ids` and `place_ids` are read directly by the ring's hot path.

    Args:
        write: writes bytes at an offset of the log, all of them or OSError.
    """

    def __init__(self, write: Callable[[int, bytes], None]) -> None:
        self._write = write
        self._end = 0
        self._info_entries: list[tuple[int, int]] = []  # (offset, capacity), the older first
        self._info_version = 0
        self.names = Names([], [])
        self.site_ids: dict[tuple[Phase, str, str, int], int] = {}
        self.place_ids: dict[tuple[Role, str, Layout], int] = {}

    def add_site(self, phase: Phase, module: str, module_class: str, depth: int) -> int:
        """The number of a new site."""
        site = Site(phase.value, encodable(module), encodable(module_class), depth)
        self._append(_SITE, site)
        self.names.sites.append(site)
        return self.site_ids.setdefault((phase, module, module_class, depth), len(self.names.sites) - 1)

    def add_place(self, role: Role, key: str, layout: Layout) -> int:
        """The number of a new place."""
        place = Place(role.value, encodable(key), *layout)
        self._append(_PLACE, place)
        self.names.places.append(place)
        return self.place_ids.setdefault((role, key, layout), len(self.names.places) - 1)

    def set_info(self, info: str) -> None:
        """Write the run's metadata over the older of its two entries, or into a new one where it does not fit."""
        self._info_version += 1
        payload = _payload(_INFO, (self._info_version, info))
        if len(self._info_entries) == 2 and len(payload) <= self._info_entries[0][1]:
            offset, capacity = self._info_entries.pop(0)
            self._write(offset, _entry(payload, capacity))
        else:
            del self._info_entries[:-1]
            capacity = len(payload) * 3 // 2
            offset, self._end = self._end, self._write_at_end(payload, capacity)
        self._info_entries.append((offset, capacity))

    def _append(self, kind: str, fields: tuple[object, ...]) -> None:
        payload = _payload(kind, fields)
        self._end = self._write_at_end(payload, len(payload))

    def _write_at_end(self, payload: bytes, capacity: int) -> int:
        """The log's new end; it moves only when all is written, so a failed write is written over."""
        entry = _entry(payload, capacity)
        self._write(self._end, entry)
        return self._end + len(entry)


def parse(log: bytes) -> Names:
    """The names in a copy of the log, up to the first entry that is not whole; never raises."""
    names, newest = Names([], []), 0
    for kind, fields in _entries(log):
        try:
            if kind == _SITE:
                names.sites.append(Site(*fields))
            elif kind == _PLACE:
                names.places.append(Place(*fields))
            elif kind == _INFO and fields[0] > newest:
                newest, names = fields[0], names._replace(info=fields[1])
        except (TypeError, IndexError):
            break  # whole, but not ours
    return names


def encodable(text: str) -> str:
    """The text with lone surrogates spelled out, which no file format takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _payload(kind: str, fields: tuple[object, ...]) -> bytes:
    return json.dumps([kind, *fields], ensure_ascii=False).encode()


def _entry(payload: bytes, capacity: int) -> bytes:
    return _ENTRY.pack(capacity, len(payload), zlib.crc32(payload)) + payload.ljust(capacity, b"\0")


def _entries(log: bytes) -> Iterator[tuple[str, list[Any]]]:
    start = 0
    while start + _ENTRY.size <= len(log):
        capacity, length, checksum = _ENTRY.unpack_from(log, start)
        start += _ENTRY.size
        payload = log[start : start + length]
        start += capacity
        if not 0 < length <= capacity or start > len(log):
            return
        if zlib.crc32(payload) == checksum:
            kind, *fields = json.loads(payload)
            yield kind, fields
        elif not payload.startswith(_INFO_START):
            return  # the names after it would get wrong numbers
