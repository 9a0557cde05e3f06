"""Reading a ring from outside: what its process wrote, whether that process is alive, dying or dead."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recorder.encoding import WORDS_PER_SLOT, Slots, checksums
from recorder.inspection import damaged, info_from_json
from recorder.names import Names, parse
from recorder.processes import is_alive
from recorder.ring_file import RingState, read_file
from recorder.schema import RunInfo
from recorder.slot_table import table_of


class RingContents(NamedTuple):
    """What a scan found. evicted: records that the ring dropped; gaps: records that are missing between the oldest
    and the newest; torn: slots that were being written when they were read, or are damaged; alive: whether the
    process that writes it still runs."""

    info: RunInfo
    table: pa.Table
    rank: int
    pid: int
    state: RingState
    evicted: int
    gaps: int
    torn: int
    alive: bool


def scan(path: Path | str) -> RingContents:
    """Read a ring from outside, whether its process is alive or not.

    Every slot is looked at and no cursor is trusted. Rows are in the order in which they were appended.

    Raises:
        DumpError: the file is not a readable ring.
    """
    path = Path(path)
    header, slots, log = read_file(path)
    names = parse(log)
    good = _is_whole(slots) & (slots["site"] < len(names.sites)) & (slots["place"] < len(names.places))
    order = np.flatnonzero(good)
    kept = slots[order[np.argsort(slots["position"][order])]]
    newest = int(kept["position"][-1]) if len(kept) else 0
    evicted = max(0, newest - header.capacity)
    last_sign = max(header.heartbeat, int(kept["t_ns"][-1]) if len(kept) else 0)
    return RingContents(
        info_from_json(path, names.info) if names.info else RunInfo(header.run_id, header.rank),
        _table(path, kept, names, header.rank),
        header.rank,
        header.process.pid,
        header.state,
        evicted,
        gaps=newest - evicted - int(np.count_nonzero(kept["position"] > evicted)),
        torn=int(np.count_nonzero(~good & _is_used(slots))),
        alive=header.state is RingState.OPEN and is_alive(header.process, last_sign, time.time_ns()),
    )


def _is_whole(slots: Slots) -> npt.NDArray[np.bool_]:
    position, index = slots["position"], np.arange(len(slots), dtype=np.uint64)
    fits = (position != 0) & ((position - np.uint64(1)) % np.uint64(len(slots)) == index)
    return np.asarray(fits & (checksums(slots) == slots["checksum"]), np.bool_)


def _is_used(slots: Slots) -> npt.NDArray[np.bool_]:
    return np.asarray(slots.view("<u8").reshape(-1, WORDS_PER_SLOT).any(axis=1), np.bool_)


def _table(path: Path, slots: Slots, names: Names, rank: int) -> pa.Table:
    try:
        return table_of([slots], names, rank)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise damaged(path, error) from None
