"""The ring: the latest records of one process in one preallocated, mapped file, which outlives the process.

A record is written as position 0, checksum, body, position; whoever reads a slot trusts it only when its position and
checksum fit. The page cache keeps what a killed process wrote: nothing is flushed. The caller serialises.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from recorder.bulk import BulkEncoder
from recorder.encoding import (
    ALL_NULL,
    CHECKSUM_PRIME,
    EXPECTED,
    FRAME_WEIGHT,
    ORIGIN,
    ORIGIN_ROLES,
    POSITION_WEIGHT,
    RECOMPUTE,
    SLOT,
    SLOT_SIZE,
    TRAINING,
    WORDS_PER_SLOT,
    Slots,
    checksums,
)
from recorder.errors import RecorderError
from recorder.names import NameLog
from recorder.records import Frame, Statistics
from recorder.ring_file import HEADER_SIZE, Header, RingState, create_file, write_at, write_pulse
from recorder.scanning import RingContents, scan
from recorder.schema import Role, RunInfo
from recorder.slot_table import table_of

__all__ = ["Ring", "RingContents", "RingState", "scan"]

_FRAME = struct.Struct("<qqqIiI").pack  # batch, seq, t_ns, step, call, site
_HEALTHY = struct.Struct("<II2d").pack  # place, flags, abs_min, abs_max; what follows is 0
_WHOLE = struct.Struct("<II4d5q").pack
_SLOT = struct.Struct("<QI36s80s").pack_into  # no position yet, checksum, frame, record
_HEALTHY_NULLS = 0b110001100  # mean, rms, num_zero and num_subnormal are not computed by "minmax"


class Ring:
    """Fixed-capacity buffer of the latest records. Not thread-safe; inert in a forked child."""

    def __init__(self, path: Path, file: int, header: Header) -> None:
        self.path = path
        self.capacity = header.capacity
        self._rank = header.rank
        self._file = file
        self._header = header
        self._map = mmap.mmap(file, HEADER_SIZE + self.capacity * SLOT_SIZE)
        self._slots: Slots = np.frombuffer(self._map, SLOT, self.capacity, HEADER_SIZE)
        self._words = self._slots.view("<u8").reshape(-1, WORDS_PER_SLOT)
        self._positions = memoryview(self._map)[HEADER_SIZE:].cast("Q")  # one store for one position
        self._position = 0
        self._names = NameLog(self._write_log)
        self._bulk = BulkEncoder(self._names)
        self._live = self._is_owner = True
        _rings.add(self)

    @classmethod
    def create(cls, directory: Path, *, run_id: str, rank: int, capacity: int) -> Ring:
        """Make the ring's file in the run's directory. capacity: records.

        Raises:
            RecorderError: the file cannot be made, or the disk is full.
        """
        path, file, header = create_file(directory, run_id, rank, capacity)
        return cls(path, file, header)

    @property
    def position(self) -> int:
        """Records appended so far."""
        return self._position

    @property
    def evicted(self) -> int:
        """Records that are no longer in the ring."""
        return max(0, self._position - self.capacity)

    def append(self, frame: Frame) -> None:
        """Write the records of one frame.

        Raises:
            RecorderError: a new name did not fit on the disk.
        """
        if not self._live:
            return
        batch, step, seq, call, t_ns, phase, module, module_class, depth, training, recompute, records, origin = frame
        names = self._names
        site = names.site_ids.get((phase, module, module_class, depth))
        if site is None:
            site = names.add_site(phase, module, module_class, depth)
        shared = _FRAME(batch, seq, t_ns, step, call, site)
        flags = (TRAINING if training else 0) | (RECOMPUTE if recompute else 0)
        get_place, number, write = names.place_ids.get, int.from_bytes, _SLOT
        buffer, commit, capacity, position = self._map, self._positions, self.capacity, self._position
        mixed = number(shared, "little") % CHECKSUM_PRIME * FRAME_WEIGHT + position * POSITION_WEIGHT
        for role, key, layout, statistics, expected in records:
            place = get_place((role, key, layout))
            if place is None:
                place = names.add_place(role, key, layout)
            abs_min, abs_max, mean, rms, nan, posinf, neginf, zero, subnormal = statistics
            if (
                mean is rms is zero is subnormal is None
                and nan == 0 == posinf
                and neginf == 0
                and abs_min is not None
                and abs_max is not None
                and not expected
            ):
                own = _HEALTHY(place, flags | _HEALTHY_NULLS, abs_min, abs_max)
            else:
                own = _own(place, flags, role, statistics, expected, origin)
            slot = position % capacity
            position += 1
            mixed += POSITION_WEIGHT
            checksum = (number(own, "little") + mixed) % CHECKSUM_PRIME
            write(buffer, HEADER_SIZE + slot * SLOT_SIZE, 0, checksum, shared, own)
            commit[slot * WORDS_PER_SLOT] = position
        self._position = position

    def append_many(self, frames: Sequence[Frame]) -> None:
        """Write the records of many frames, several times as fast as one by one.

        Raises:
            RecorderError: a new name did not fit on the disk.
        """
        if not self._live or not frames:
            return
        slots = self._bulk.encode(frames)
        first, self._position = self._position, self._position + len(slots)
        slots["position"] = np.arange(first + 1, self._position + 1, dtype=np.uint64)
        slots["checksum"] = checksums(slots)
        self._commit(slots[-self.capacity :])

    def _commit(self, slots: Slots) -> None:
        """Copy slots to where their positions say, in at most two pieces."""
        words = slots.view("<u8").reshape(-1, WORDS_PER_SLOT)
        start = (self._position - len(slots)) % self.capacity
        fitting = self.capacity - start
        for at, piece in ((start, words[:fitting]), (0, words[fitting:])):
            target, positions = self._words[at : at + len(piece)], piece[:, 0].copy()
            target[:, 0] = piece[:, 0] = 0
            target[:] = piece
            target[:, 0] = positions

    def table(self, since: int = 0) -> pa.Table:
        """The records from position `since` on that are still in the ring, oldest first."""
        first = min(max(since, self._position - self.capacity, 0), self._position)
        start, count = first % self.capacity, self._position - first
        pieces = (self._slots[start : start + count], self._slots[: max(0, start + count - self.capacity)])
        return table_of(pieces, self._names.names, self._rank)

    def set_info(self, info: RunInfo) -> None:
        """Keep the run's metadata, for whoever reads the ring; a later call replaces it.

        Raises:
            RecorderError: it did not fit on the disk.
        """
        if not self._live:
            return
        self._names.set_info(info.to_json())
        write_pulse(self._file, self.evicted)

    def close(self, *, clean: bool) -> None:
        """Let go of the file; `table` goes on working. clean: the run has ended as it should."""
        if not self._live:
            return
        self._live = False
        write_pulse(self._file, self.evicted, RingState.CLEAN if clean else RingState.OPEN)
        os.close(self._file)

    def unlink(self) -> None:
        """Remove the file."""
        if self._is_owner:
            self.path.unlink(missing_ok=True)

    def disown(self) -> None:
        """Never write or remove the file again: in a forked child, which shares it, it is the parent's."""
        self._live = self._is_owner = False

    def _write_log(self, offset: int, entry: bytes) -> None:
        try:
            write_at(self._file, self._header.log_offset + offset, entry)
        except OSError as error:
            raise RecorderError(f"{self.path}: cannot write the ring: {error.strerror}") from None


def _own(place: int, flags: int, role: Role, statistics: Statistics, expected: bool, origin: bool) -> bytes:
    """A record's part of a slot, for any statistics."""
    for bit, value in enumerate(statistics):
        if value is None:
            flags |= 1 << bit
    if expected:
        flags |= EXPECTED
    if origin and role in ORIGIN_ROLES and not expected and statistics.flagged:
        flags |= ORIGIN
    if flags & ALL_NULL:
        return _WHOLE(place, flags, *(0 if value is None else value for value in statistics))
    return _WHOLE(place, flags, *statistics)


_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _disown_all() -> None:
    for ring in list(_rings):
        ring.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
