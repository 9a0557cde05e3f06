"""A report for the terminal: the verdict, the warnings, then the frames that led there. Pure."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from recorder.schema import RunInfo, SilentWarning, Suppressed, Trigger
from viewer.report import Report
from viewer.tables import aligned, number, plural, printable

FRAMES_SHOWN = 12
WARNINGS_SHOWN = 4
FRAME_HEADER = (
    "seq",
    "batch",
    "phase",
    "module",
    "class",
    "tensor",
    "abs min",
    "abs max",
    "headroom",
    "dtype",
    "flags",
)
_NUMBERS = frozenset({0, 1, 6, 7, 8})


def report_text(report: Report) -> str:
    """The whole report, ending in a newline."""
    parts = [
        aligned(heading_rows(report), indent=""),
        [printable(line) for line in report.lines],
        _warnings(report.warnings),
        _suppressed(report.suppressed),
        _problems(report),
        _frames(report),
        _footer(report),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def place_text(module: str | None, role: str | None, key: str | None) -> str:
    """A tensor for a reader: `output 0 of encoder.layer.1`; the root module reads `the model`."""
    tensor = " ".join(part for part in (role, key) if part)
    where = "the model" if module == "" else module or ""
    return " of ".join(part for part in (tensor, where) if part)


def short_path(path: Path) -> str:
    """The path from here when it lies below, else whole; with links left alone."""
    relative = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    return printable(relative)


def heading_rows(report: Report) -> list[tuple[str, ...]]:
    """Which run this is, why its dump exists, and which file was read."""
    info = report.info
    started = f", started {info.start_time}" if info.start_time else ""
    rows: list[tuple[str, ...]] = [("run", f"{report.run.run_id}, rank {info.rank} of {info.world_size}{started}")]
    if report.trigger is not None:
        rows.append(("trigger", _trigger_text(report.trigger)))
    if report.source is not None:
        files = len(report.source.files)
        of = f" in its {plural(files, 'dump')}" if files > 1 else ""
        rows.append(("read", f"{short_path(_target(report))} ({plural(len(report.records), 'record')}{of})"))
    return rows


def _trigger_text(trigger: Trigger) -> str:
    place = place_text(trigger.module, trigger.role, trigger.key)
    when = [] if trigger.batch is None else [f"batch {trigger.batch}"]
    when += [trigger.phase] if trigger.phase else []
    return ": ".join(part for part in (", ".join([trigger.kind.replace("_", " "), *when]), place) if part)


def _warnings(warnings: tuple[SilentWarning, ...]) -> list[str]:
    """The first of each kind, so that one kind in every layer does not hide another."""
    if not warnings:
        return []
    by_kind: dict[str, list[SilentWarning]] = {}
    for warning in warnings:
        by_kind.setdefault(warning.kind, []).append(warning)
    shown = [warning for same in by_kind.values() for warning in same[:WARNINGS_SHOWN]]
    rows = aligned((w.kind, f"batch {w.batch}", w.phase, warning_text(w)) for w in shown)
    hidden = [f"{len(same) - WARNINGS_SHOWN} more of {kind}" for kind, same in by_kind.items() if same[WARNINGS_SHOWN:]]
    more = [f"  and {', '.join(hidden)}: --format json lists all"] if hidden else []
    return [f"{plural(len(warnings), 'warning')} (nothing non-finite, but look):", *rows, *more]


def warning_text(warning: SilentWarning) -> str:
    """What it says, with its place where the text does not name it."""
    if warning.module and warning.module in warning.text:
        return warning.text
    return f"{place_text(warning.module, warning.role, warning.key)}: {warning.text}"


def _suppressed(suppressed: tuple[Suppressed, ...]) -> list[str]:
    if not suppressed:
        return []
    rows = [(f"{one.count:,}x", place_text(one.module, one.role, one.key), f"rule {one.rule}") for one in suppressed]
    return ["Non-finite but expected, so never a trigger:", *aligned(rows, frozenset({0}))]


def _problems(report: Report) -> list[str]:
    if not report.run.problems:
        return []
    rows = [(short_path(path), sentence) for path, sentence in report.run.problems]
    return ["Files of this run that cannot be read:", *aligned(rows)]


def frame_rows(report: Report) -> list[tuple[str, ...]]:
    """The header, then one row for each record of the last frames up to the origin or trigger; [] without records."""
    seqs = _seqs(report)[-FRAMES_SHOWN:]
    if not seqs:
        return []
    shown = report.records[report.records["seq"].isin(seqs)]
    rows = [row for _, frame in shown.groupby("seq", sort=True) for row in _frame_rows(frame, report)]
    return [FRAME_HEADER, *rows]


def frames_title(report: Report) -> str:
    """What the table of `frame_rows` shows."""
    count = len(_seqs(report))
    shown = plural(min(count, FRAMES_SHOWN), "frame")
    led = "that led there" if report.overflowed else "recorded last"
    return f"The {shown} {led} (of {count:,}; headroom: binades left below the dtype's largest number):"


def _frames(report: Report) -> list[str]:
    rows = frame_rows(report)
    return [frames_title(report), *aligned(rows, _NUMBERS)] if rows else []


def _seqs(report: Report) -> list[int]:
    """The frames that were over when it happened, in order."""
    if report.records.empty:
        return []
    last = _last_seq(report)
    seqs: list[int] = sorted(report.records["seq"].unique().tolist())
    return seqs if last is None else [seq for seq in seqs if seq <= last]


def _last_seq(report: Report) -> int | None:
    """Where the table ends: the origin, else the trigger, else the last frame."""
    if report.origin is not None and report.origin.get("seq") is not None:
        return int(report.origin["seq"])
    return report.trigger.seq if report.trigger else None


def _frame_rows(frame: pd.DataFrame, report: Report) -> Iterator[tuple[str, ...]]:
    """One row a record; what is the same for the whole frame stands on its first row only."""
    for i, record in enumerate(frame.to_dict("records")):
        head = ("", "", "", "", "") if i else _frame_head(record)
        yield (
            *head,
            " ".join(part for part in (str(record["role"]), str(record["key"])) if part),
            number(record["abs_min"]),
            number(record["abs_max"]),
            "none"
            if record["has_inf"] is True
            else headroom_text(record["abs_max"], str(record["dtype"]), report.info),
            str(record["dtype"]),
            flags_text(record, report.origin),
        )


def _frame_head(record: dict[Any, Any]) -> tuple[str, ...]:
    phase = str(record["phase"]) + (" (recomputed)" if record["recompute"] else "")
    module = str(record["module"]) or "(the model)"
    return (str(record["seq"]), str(record["batch"]), phase, module, str(record["module_class"]))


def headroom_text(abs_max: float | None, dtype: str, info: RunInfo) -> str:
    """log2(largest finite number of the dtype / abs max), one decimal; empty where there is no answer."""
    limits = info.finfo.get(dtype)
    if limits is None or abs_max is None or math.isnan(abs_max) or abs_max <= 0:
        return ""
    return f"{math.log2(limits.max) - math.log2(abs_max):.1f}"


def flags_text(record: dict[Any, Any], origin: dict[str, Any] | None) -> str:
    """`inf`, `nan`, `inf nan`, and what is known about it: `expected`, `ORIGIN`."""
    names = {"has_inf": "inf", "has_nan": "nan", "expected": "expected"}
    said = [name for column, name in names.items() if record[column] is True]
    born = origin is not None and all(record[name] == origin[name] for name in ("seq", "role", "key"))
    return " ".join([*said, "ORIGIN"] if born else said)


def _footer(report: Report) -> list[str]:
    rows: list[tuple[str, str]] = []
    overhead = (report.run.info or report.info).overhead or report.info.overhead
    if overhead is not None:
        of_batches = f"{overhead.share:.1%} of the {overhead.batch_seconds:.1f} s that the batches took"
        rows.append(("recorder", f"{overhead.seconds:.2f} s in hooks, {of_batches}"))
    if report.info.evicted:
        rows.append(("evicted", f"{plural(report.info.evicted, 'older record')} made room for these"))
    left = [ring.path for ring in report.run.rings if ring.left_behind]
    if left:
        what = "a ring" if len(left) == 1 else plural(len(left), "ring")
        told = f"overflight recover {shlex.quote(short_path(report.run.directory))}"
        rows.append(("left over", f"a killed process left {what} behind: {told}"))
    rows.append(("to see it", f"overflight view {shlex.quote(short_path(_target(report)))}"))
    return aligned(rows, indent="")


def _target(report: Report) -> Path:
    """The file that was judged, or the directory of several."""
    files = report.source.files if report.source else ()
    return files[0].path if len(files) == 1 else report.run.directory
