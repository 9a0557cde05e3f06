"""The ring as a file: its header page, its creation, and who owns it."""

from __future__ import annotations

import json
import os
import platform
import struct
import time
import zlib
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from recorder.encoding import SLOT, SLOT_SIZE, Slots
from recorder.errors import DumpError, RecorderError

HEADER_SIZE = 4096
RING_VERSION = 1
_MAGIC = b"OVFLRING"
_FIXED = struct.Struct("<8sIIQQQII I")  # magic, version, slot size, capacity, log offset, heartbeat, state, identity
_STATE_OFFSET = 40
_HEARTBEAT_OFFSET = 32
_LOG_RESERVE = 1 << 20


class RingState(IntEnum):
    """Whether the process that writes a ring has said good-bye."""

    OPEN = 0
    CLEAN = 1


@dataclass(frozen=True)
class Header:
    """The first page of a ring. started: ticks since boot at which the process began, to know a reused pid;
    heartbeat: nanoseconds since the epoch."""

    capacity: int
    log_offset: int
    rank: int
    run_id: str
    pid: int
    started: int
    boot_id: str
    pid_namespace: str
    heartbeat: int
    state: RingState = RingState.OPEN

    def mark(self, file: int, state: RingState) -> None:
        """Write the state and a heartbeat."""
        write_at(file, _HEARTBEAT_OFFSET, struct.pack("<QI", time.time_ns(), state))

    def beat(self, file: int) -> None:
        write_at(file, _HEARTBEAT_OFFSET, struct.pack("<Q", time.time_ns()))


def create_file(directory: Path, run_id: str, rank: int, capacity: int) -> tuple[Path, int, Header]:
    """A new ring's path, file descriptor and header; every block of it is on the disk already.

    Raises:
        RecorderError: it cannot be made; nothing is left behind.
    """
    log_offset = HEADER_SIZE + capacity * SLOT_SIZE
    header = Header(capacity, log_offset, rank, run_id, os.getpid(), _started(os.getpid()), boot_id(), _namespace(), 0)
    path = directory / f"_rank{rank:04d}.{header.pid}.ring"
    try:
        path, file = _open_new(path)
    except OSError as error:
        raise RecorderError(f"{path}: cannot make the ring: {error.strerror}") from None
    try:
        _allocate(file, log_offset + _LOG_RESERVE)
        page = _page(header)
        write_at(file, len(_MAGIC), page[len(_MAGIC) :])
        write_at(file, 0, _MAGIC)
    except OSError as error:
        os.close(file)
        path.unlink(missing_ok=True)
        size = (log_offset + _LOG_RESERVE) / 2**20
        raise RecorderError(f"{path}: cannot reserve {size:.0f} MiB for the ring: {error.strerror}") from None
    return path, file, header


def write_at(file: int, offset: int, content: bytes) -> None:
    """All of it, or OSError."""
    os.lseek(file, offset, os.SEEK_SET)
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def read_header(path: Path) -> tuple[Header, Slots, bytes]:
    """The header, a copy of the slots, and a copy of the log that is at least as new as the slots.

    Raises:
        DumpError: not a readable ring.
    """
    try:
        with path.open("rb", buffering=0) as file:
            header = _parse(path, file.read(HEADER_SIZE))
            slots = file.read(header.capacity * SLOT_SIZE)
            if len(slots) < header.capacity * SLOT_SIZE:
                raise DumpError(path, "the ring is cut off: its slots are not all there")
            return header, np.frombuffer(slots, SLOT), file.read()
    except OSError as error:
        raise DumpError(path, (error.strerror or str(error)).lower()) from None


def boot_id() -> str:
    """Names this boot of this machine; empty where the system has no such thing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _page(header: Header) -> bytes:
    identity = json.dumps(
        {
            "run_id": header.run_id,
            "rank": header.rank,
            "pid": header.pid,
            "started": header.started,
            "boot_id": header.boot_id,
            "pid_namespace": header.pid_namespace,
            "host": platform.node(),
        }
    ).encode()
    fixed = _FIXED.pack(
        _MAGIC, RING_VERSION, SLOT_SIZE, header.capacity, header.log_offset, time.time_ns(),
        RingState.OPEN, len(identity), zlib.crc32(identity),
    )  # fmt: skip
    return (fixed + identity).ljust(HEADER_SIZE, b"\0")


def _parse(path: Path, page: bytes) -> Header:
    if not page:
        raise DumpError(path, "the file is empty")
    if len(page) < HEADER_SIZE or page[: len(_MAGIC)] != _MAGIC:
        raise DumpError(path, "not a ring of Overflight")
    _, version, slot_size, capacity, log_offset, heartbeat, state, length, checksum = _FIXED.unpack_from(page)
    if version != RING_VERSION or slot_size != SLOT_SIZE:
        raise DumpError(path, f"written by another Overflight (ring version {version}), this one reads {RING_VERSION}")
    identity = page[_FIXED.size : _FIXED.size + length]
    if zlib.crc32(identity) != checksum or log_offset != HEADER_SIZE + capacity * SLOT_SIZE:
        raise DumpError(path, "the ring's header is damaged")
    values = json.loads(identity)
    values.pop("host")
    return Header(capacity, log_offset, heartbeat=heartbeat, state=RingState(state), **values)


def _open_new(path: Path) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    candidate = path
    for number in range(2, 1000):
        try:
            return candidate, os.open(candidate, flags | getattr(os, "O_BINARY", 0), 0o600)
        except FileExistsError:
            candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    raise FileExistsError(17, "too many rings of one process", str(path))


def _allocate(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for offset in range(0, size, 1 << 20):
        write_at(file, offset, bytes(min(1 << 20, size - offset)))


def _started(pid: int) -> int:
    """Clock ticks since boot at which a process began; 0 where that cannot be known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
