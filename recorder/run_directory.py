"""Where a run's files lie, who this process is in it, and the facts of the run that do not change."""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import secrets
from pathlib import Path
from typing import Any

import torch

from recorder.errors import ConfigurationError

RUN_INFO_FILE = "_run.json"

_runs = itertools.count()


def make_run_directory(log_dir: Path, run_id: str | None) -> tuple[Path, str]:
    """The directory of a new run (or of one that another rank began), and its id."""
    name = run_id or _shared_run_id() or _agreed_run_id() or _fresh_run_id()
    directory = log_dir / name
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigurationError("log_dir", f"cannot make the run directory {directory}: {error.strerror}") from None
    return directory, name


def rank_and_world_size() -> tuple[int, int]:
    """From torch.distributed where it is initialised, else from a launcher's environment, else (0, 1)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def versions() -> dict[str, str]:
    from recorder import __version__

    found = {"overflight": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return found


def utc_now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file; a reader sees the old text or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def _shared_run_id() -> str | None:
    """Ranks of one job must agree without talking: torchrun gives all of them the same id and restart count."""
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    if job in (None, "", "none"):
        return None
    return f"{job}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}".replace("/", "_")


def _agreed_run_id() -> str | None:
    """torchrun gives an id only when it is told to: the ranks then take that of whichever asks their store first."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    if torch.distributed.get_world_size() < 2:
        return None
    try:
        return first_to_name(torch.distributed.distributed_c10d._get_default_store(), next(_runs))
    except (RuntimeError, NotImplementedError):  # a store of another kind, or one that can't be reached
        return None


def first_to_name(store: Any, run: int) -> str:
    """The id of this process's nth run, the same on all ranks of the store; none waits for another."""
    name: bytes = store.compare_set(f"overflight/run/{run}", "", _fresh_run_id())
    return name.decode()


def _fresh_run_id() -> str:
    return f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
