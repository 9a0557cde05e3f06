"""The lines of a dump in which nothing went bad: why it exists, how near the limits, what was excused."""

from __future__ import annotations

from collections import Counter

import numpy as np

from recorder.diagnosis.evidence import history_of, limits_of
from recorder.diagnosis.rows import Rows, Value
from recorder.diagnosis.step_patterns import trailing_skips
from recorder.diagnosis.words import count, listed, module_name, number, place, shortened, tensor_name, with_class
from recorder.schema import RunInfo, TriggerKind


def calm_lines(rows: Rows, info: RunInfo) -> list[str]:
    """What there is to say, the reason for the dump first."""
    parts: list[str | None] = [_reason(rows, info), *_received(rows, info), *_headroom(rows, info)]
    parts += [_absorbed(rows), _expected(rows), _scaler(info), _warnings(info), _evicted(rows, info)]
    return [part for part in parts if part]


def _reason(rows: Rows, info: RunInfo) -> str:
    trigger = info.trigger
    kind = trigger.kind if trigger is not None else "none"
    healthy = f"nothing went bad in {_extent(rows)}"
    if kind == TriggerKind.TRACED_BATCH.value and trigger is not None and trigger.batch is not None:
        return f"Healthy: {healthy} (traced batch {trigger.batch})."
    if kind == TriggerKind.EXCEPTION.value:
        return f"{exception_line(rows, info)[:-1]}; {healthy}."
    begun = {
        TriggerKind.MANUAL.value: "Dumped by hand",
        TriggerKind.SIGNAL.value: "Dumped on a signal",
        TriggerKind.RECOVERED.value: "Recovered from the ring of a process that did not close it",
    }
    return f"{begun.get(kind, 'No overflow')}: {healthy}." + (_last_seen(rows) if kind == "recovered" else "")


def _extent(rows: Rows) -> str:
    if not len(rows):
        return "an empty dump"
    frames = count(len(rows.frame_starts(np.arange(len(rows)))), "frame")
    seen = rows.batch[rows.batch >= 0]
    if not seen.size:
        return frames
    first, last = seen.min(), seen.max()
    return f"{frames} of batch {first}" if first == last else f"{frames} of batches {first} to {last}"


def _last_seen(rows: Rows) -> str:
    if not len(rows):
        return ""
    last = rows.values(np.array([len(rows) - 1]))[0]
    return f" Last frame: {module_name(last.module, 40)}, {last.phase}, batch {last.batch}."


def exception_line(rows: Rows, info: RunInfo) -> str:
    """Where an exception ended the run."""
    return f"An exception ended the run{_open_place(rows, info)}."


def open_frame(rows: Rows, info: RunInfo) -> tuple[Value, ...]:
    """The records of the frame that an exception left open."""
    trigger = info.trigger
    if trigger is None or trigger.kind != TriggerKind.EXCEPTION.value or trigger.seq is None:
        return ()
    return rows.values(np.flatnonzero(rows.seq == trigger.seq)[:100])


def _open_place(rows: Rows, info: RunInfo) -> str:
    trigger, frame = info.trigger, open_frame(rows, info)
    if frame:
        return f" inside {with_class(frame[0], 50)}, {frame[0].phase}, batch {frame[0].batch}"
    if trigger is not None and trigger.module is not None:
        return f" inside {module_name(trigger.module, 50)}"
    return f" after batch {trigger.batch}" if trigger is not None and trigger.batch is not None else ""


def _received(rows: Rows, info: RunInfo) -> list[str]:
    given = [value for value in open_frame(rows, info) if value.role == "input"]
    if not given:
        return []
    said = [f"{shortened(value.key, 20)} {value.dtype} {shortened(value.shape, 24)}".strip() for value in given]
    return [f"It had received: {listed(said)}."]


def _headroom(rows: Rows, info: RunInfo) -> list[str]:
    """The value nearest to its dtype's limit."""
    nearest: tuple[float, int, float] | None = None
    sizes = rows.number("abs_max")
    for dtype, limit in limits_of(info).items():
        at = np.flatnonzero(rows.is_text("dtype", dtype) & (sizes > 0))
        if at.size == 0:
            continue
        index = int(at[np.argmax(sizes[at])])
        room = float(np.log2(limit.max) - np.log2(sizes[index]))
        if nearest is None or room < nearest[0]:
            nearest = (room, index, limit.max)
    return [] if nearest is None else _headroom_lines(rows, info, *nearest)


def _headroom_lines(rows: Rows, info: RunInfo, room: float, index: int, limit: float) -> list[str]:
    value = rows.values(np.array([index]))[0]
    where = f"{tensor_name(value.role, value.key)} of {module_name(value.module, 50)}, batch {value.batch}"
    left = f"{room:.1f} binades left below {number(limit)}"
    said = [f"Nearest to a limit: {number(value.abs_max)} in {value.dtype}, {left}: {where}."]
    earlier = [number(size) for _, size in history_of(rows, value)]
    return said + ([f"Its abs max in the batches before: {', '.join(earlier)}."] if earlier else [])


def _absorbed(rows: Rows) -> str | None:
    bad = np.flatnonzero(rows.bad & rows.is_text("role", "input"))
    if not bad.size:
        return None
    first = rows.values(bad[:1])[0]
    return f"Non-finite values came in and had no effect: {count(int(bad.size), 'record')}, first {place(first, 40)}."


def _expected(rows: Rows) -> str | None:
    expected = np.flatnonzero(rows.truth("expected") & rows.truth("flagged"))
    if not expected.size:
        return None
    names = sorted(module_name(name, 30) for name in rows.distinct("module", expected))
    return f"Expected non-finite values, such as masks: {count(int(expected.size), 'record')}, in {listed(names)}."


def _scaler(info: RunInfo) -> str | None:
    judged = [one for one in info.batches if one.skipped is not None]
    skipped = sum(1 for one in judged if one.skipped)
    if not skipped:
        return None
    scale = next((one.loss_scale for one in reversed(info.batches) if one.loss_scale is not None), None)
    row = trailing_skips(info.batches)
    trailing = f", the last {row} in a row" if row else ""
    return f"The scaler skipped {skipped} of {count(len(judged), 'step')}{trailing}; its scale is {number(scale)}."


def _warnings(info: RunInfo) -> str | None:
    if not info.warnings:
        return None
    kinds = [f"{kind} ({amount})" for kind, amount in Counter(one.kind for one in info.warnings).most_common()]
    return f"Warnings: {listed(kinds)}. First: {info.warnings[0].text}"


def _evicted(rows: Rows, info: RunInfo) -> str | None:
    if not info.evicted or not len(rows):
        return None
    return f"{count(info.evicted, 'older record')} from before batch {rows.batch[0]} evicted: not judged here."
