"""The table that `overflight ls` prints: one row a dump or ring. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from recorder.schema import Trigger
from viewer.report_text import short_path
from viewer.runs import DumpFile, RingFile, Run
from viewer.tables import age_text, aligned, plural, size_text

_HEADER = ("run", "rank", "trigger", "batch", "module", "records", "size", "age", "file")
_RIGHT = frozenset({1, 3, 5, 6, 7})


def listing(runs: list[Run], now: float) -> str:
    """One row for each dump and ring, the newest run last. now: seconds since the epoch."""
    rows = [row for run in runs for row in _rows(run, now)]
    return "\n".join(aligned([_HEADER, *rows], _RIGHT, indent="")) + "\n"


def _rows(run: Run, now: float) -> Iterator[tuple[str, ...]]:
    for dump in run.dumps:
        yield _row(dump, dump.info.trigger or Trigger(""), now)
    for ring in run.rings:
        state = "live" if ring.alive else "closed" if ring.closed else "recoverable"
        yield _row(ring, Trigger(f"({state} ring)"), now)
    if not run.dumps and not run.rings:
        yield _bare_row(run, now)


def _row(file: DumpFile | RingFile, trigger: Trigger, now: float) -> tuple[str, ...]:
    module = "" if trigger.module is None else trigger.module or "(the model)"
    return (
        file.info.run_id,
        str(file.info.rank),
        trigger.kind.replace("_", " "),
        "" if trigger.batch is None else str(trigger.batch),
        module,
        f"{file.num_rows:,}",
        size_text(file.size),
        age_text(now - file.mtime),
        short_path(file.path),
    )


def _bare_row(run: Run, now: float) -> tuple[str, ...]:
    """A run that wrote no dump: it went well so far, or none of its files can be read."""
    if run.info is None:
        said = plural(len(run.problems), "unreadable file")
        return (run.run_id, "", said, "", "", "", "", "", short_path(run.directory))
    age = age_text(now - run.info_mtime)
    return (run.run_id, str(run.info.rank), "none", "", "", "", "", age, short_path(run.directory))
