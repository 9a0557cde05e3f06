"""Which process made a file, and whether it still runs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

QUIET_NS = 10 * 60 * 1_000_000_000
"""A process that cannot be looked up is taken for dead when it has been quiet for this many nanoseconds."""


@dataclass(frozen=True)
class Process:
    """A process as it can be found again. started: clock ticks from boot to its start, which tells a reused pid;
    boot_id and pid_namespace say where the pid means anything; each is empty or 0 where the system has no such thing.
    """

    pid: int
    started: int
    host: str
    boot_id: str
    pid_namespace: str


def this_process() -> Process:
    pid = os.getpid()
    return Process(pid, _started(pid) or 0, platform.node(), _boot_id(), _pid_namespace())


def is_alive(process: Process, last_sign_ns: int, now_ns: int) -> bool:
    """Whether the process runs. Where that cannot be looked up (another machine or container), whether it has given
    a sign of life lately. Both times are nanoseconds since the epoch."""
    here = this_process()
    if process.host == here.host and process.boot_id != here.boot_id:
        return False  # this machine has been started again
    if here.boot_id and (process.boot_id, process.pid_namespace) == (here.boot_id, here.pid_namespace):
        return _started(process.pid) == process.started
    return now_ns - last_sign_ns < QUIET_NS


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None when it does not run or that cannot be known."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
