"""The ring as a file: its header page, how it is made and read, and whether its process still lives."""

from __future__ import annotations

import errno
import json
import os
import struct
import time
import zlib
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from recorder.encoding import SLOT, SLOT_SIZE, Slots
from recorder.errors import DumpError, RecorderError
from recorder.inspection import check_regular_file
from recorder.processes import Process, this_process

HEADER_SIZE = 4096  # slots begin on a page
RING_VERSION = 1
LOG_RESERVE = 1 << 20  # bytes set aside for the string log; it may outgrow them

_MAGIC = b"OVFLRING"
_HEADER = struct.Struct("<8sIIQQ")  # magic, version, slot size, capacity, log offset
_PULSE = struct.Struct("<QQI")  # heartbeat in nanoseconds since the epoch, records evicted, state
_IDENTITY = struct.Struct("<II")  # length and CRC-32 of the JSON that follows
_PULSE_OFFSET = _HEADER.size
_IDENTITY_OFFSET = _PULSE_OFFSET + _PULSE.size


class RingState(IntEnum):
    """Whether the process that writes a ring has said that it is done."""

    OPEN = 0
    CLEAN = 1


@dataclass(frozen=True)
class Header:
    """The first page of a ring. heartbeat: nanoseconds since the epoch, at the last change of names or metadata."""

    run_id: str
    rank: int
    capacity: int
    process: Process
    heartbeat: int = 0
    state: RingState = RingState.OPEN

    @property
    def log_offset(self) -> int:
        return HEADER_SIZE + self.capacity * SLOT_SIZE


def create_file(directory: Path, run_id: str, rank: int, capacity: int) -> tuple[Path, int, Header]:
    """A new ring's path, file descriptor and header; every block of it is on the disk already.

    A disk that fills up later would otherwise kill the training with SIGBUS.

    Raises:
        RecorderError: it cannot be made; nothing is left behind.
    """
    header = Header(run_id, rank, capacity, this_process())
    path = directory / f"_rank{rank:04d}.{header.process.pid}.ring"
    try:
        path, file = _open_new(path)
    except OSError as error:
        raise RecorderError(f"{path}: cannot make the ring: {error.strerror}") from None
    size = header.log_offset + LOG_RESERVE
    try:
        _allocate(file, size)
        _write_header(file, header)
    except OSError as error:
        os.close(file)
        path.unlink(missing_ok=True)
        raise RecorderError(f"{path}: cannot set {size / 2**20:.0f} MiB aside for the ring: {error.strerror}") from None
    return path, file, header


def write_at(file: int, offset: int, content: bytes) -> None:
    """All of it, or OSError."""
    os.lseek(file, offset, os.SEEK_SET)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def write_pulse(file: int, evicted: int, state: RingState = RingState.OPEN) -> None:
    """Say in the header that the process lives, or that it is done."""
    write_at(file, _PULSE_OFFSET, _PULSE.pack(time.time_ns(), evicted, state))


def read_file(path: Path) -> tuple[Header, Slots, bytes]:
    """The header, then a copy of the slots, then a copy of the log.

    In this order: names are written before the first slot that uses them, so the log has all that the slots need.

    Raises:
        DumpError: not a readable ring.
    """
    check_regular_file(path)
    try:
        with path.open("rb", buffering=0) as file:
            header = _parse(path, _read(file, HEADER_SIZE))
            if os.fstat(file.fileno()).st_size < header.log_offset:
                raise DumpError(path, "the ring is cut off: not all of its slots are there")
            slots = _read(file, header.capacity * SLOT_SIZE)
            return header, np.frombuffer(slots, SLOT), file.read()
    except OSError as error:
        raise DumpError(path, (error.strerror or str(error)).lower()) from None


def _write_header(file: int, header: Header) -> None:
    identity = json.dumps({"run_id": header.run_id, "rank": header.rank, "process": asdict(header.process)}).encode()
    page = _HEADER.pack(_MAGIC, RING_VERSION, SLOT_SIZE, header.capacity, header.log_offset)
    page += _PULSE.pack(time.time_ns(), 0, RingState.OPEN)
    page += _IDENTITY.pack(len(identity), zlib.crc32(identity)) + identity
    if len(page) > HEADER_SIZE:
        raise OSError(errno.ENAMETOOLONG, "the run's id is too long")
    write_at(file, len(_MAGIC), page[len(_MAGIC) :])
    write_at(file, 0, _MAGIC)  # last: a ring whose maker died before this is no ring


def _parse(path: Path, page: bytes) -> Header:
    if len(page) < HEADER_SIZE or not page.startswith(_MAGIC):
        raise DumpError(path, "not a ring of Overflight")
    _, version, slot_size, capacity, log_offset = _HEADER.unpack_from(page)
    if version != RING_VERSION:
        newer = "a newer" if version > RING_VERSION else "another"
        raise DumpError(path, f"was written by {newer} Overflight (ring version {version}), this one reads 1: upgrade")
    heartbeat, _, state = _PULSE.unpack_from(page, _PULSE_OFFSET)
    try:
        identity = _identity(page)
        header = Header(
            identity["run_id"], identity["rank"], capacity, Process(**identity["process"]), heartbeat, RingState(state)
        )
    except (ValueError, TypeError, KeyError):
        raise DumpError(path, "the ring's header is damaged") from None
    if slot_size != SLOT_SIZE or log_offset != header.log_offset or not capacity:
        raise DumpError(path, "the ring's header is damaged")
    return header


def _identity(page: bytes) -> dict[str, Any]:
    length, checksum = _IDENTITY.unpack_from(page, _IDENTITY_OFFSET)
    start = _IDENTITY_OFFSET + _IDENTITY.size
    text = page[start : start + length]
    if zlib.crc32(text) != checksum:
        raise ValueError("checksum")
    identity: dict[str, Any] = json.loads(text)
    return identity


def _open_new(path: Path) -> tuple[Path, int]:
    """A second ring of one process gets a number; what is there is never written over."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # not every system has all of them
        flags |= getattr(os, name, 0)
    candidate, number = path, 1
    while True:
        try:
            return candidate, os.open(candidate, flags, 0o600)
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")


def _allocate(file: int, size: int) -> None:
    try:
        os.posix_fallocate(file, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        _write_zeros(file, size)  # macOS, Windows, and file systems that cannot set blocks aside


def _write_zeros(file: int, size: int) -> None:
    for offset in range(0, size, 1 << 20):
        write_at(file, offset, bytes(min(1 << 20, size - offset)))


def _read(file: Any, size: int) -> bytes:
    """`size` bytes, or fewer at the file's end; one read call gives 2 GiB at most."""
    parts, missing = [], size
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
