"""Where the first bad value was, and whether it was made there or came in from somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from recorder.diagnosis.rows import Mask, Rows, Value
from recorder.schema import RunInfo, Trigger, TriggerKind


class Source(str, Enum):
    """Where the first bad value came from."""

    BORN = "born"  # made by this module call: what went in was finite
    BETWEEN = "between"  # made between modules, by the code of the module around
    DATA = "data"  # came with the batch
    WEIGHT = "weight"  # a parameter that was bad before the forward ran
    BUFFER = "buffer"
    GRADIENT = "gradient"  # the step used a gradient that was bad
    AFTER = "after"  # a gradient made by what consumed the output: a loss, or code between modules
    EARLIER = "earlier"  # what went in was bad already
    UNKNOWN = "unknown"  # nothing in the dump says


@dataclass(frozen=True)
class Birth:
    """The first bad value, and where it came from."""

    first: Value
    source: Source

    @property
    def inherited(self) -> bool:
        return self.source not in (Source.BORN, Source.BETWEEN, Source.UNKNOWN)


def find_birth(rows: Rows, info: RunInfo) -> Birth | None:
    """The place that an overflow trigger names, else the first unexcused bad row that had an effect.

    None when nothing went bad: a bad input that no output, weight or gradient followed was absorbed.
    """
    trigger = info.trigger
    named = trigger is not None and trigger.kind == TriggerKind.OVERFLOW.value
    first = _named(rows, trigger) if trigger is not None and named else _first(rows, info)
    return None if first is None else Birth(first, _source(rows, first))


def skipped_batches(info: RunInfo) -> list[int]:
    """Batches whose inf gradients are a scaler's business: the step was skipped, or is still to be judged."""
    return [one.batch for one in info.batches if one.skipped or (one.loss_scale is not None and one.skipped is None)]


def _named(rows: Rows, trigger: Trigger) -> Value:
    """The record at a trigger's place: the very one, else the nearest thing to it, else the bare place."""
    text = {"module": trigger.module, "role": trigger.role, "key": trigger.key, "phase": trigger.phase}
    place = np.ones(len(rows), dtype=bool)
    for name, wanted in text.items():
        if wanted is not None:
            place &= rows.is_text(name, wanted)
    for mask in (place & _at(rows, trigger.seq), place & rows.bad & _in_batch(rows, trigger.batch)):
        found = np.flatnonzero(mask & rows.bad) if (mask & rows.bad).any() else np.flatnonzero(mask)
        if found.size:
            return rows.values(found[:1])[0]
    return _bare(trigger)


def _at(rows: Rows, seq: int | None) -> Mask:
    return np.equal(rows.seq, -2 if seq is None else seq)


def _in_batch(rows: Rows, batch: int | None) -> Mask:
    return np.equal(rows.batch, -2 if batch is None else batch)


def _bare(trigger: Trigger) -> Value:
    return Value(
        batch=_or_unknown(trigger.batch),
        step=_or_unknown(trigger.step),
        seq=_or_unknown(trigger.seq),
        call=_or_unknown(trigger.call),
        phase=trigger.phase or "forward",
        module=trigger.module or "",
        role=trigger.role or "",
        key=trigger.key or "",
    )


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number


def _first(rows: Rows, info: RunInfo) -> Value | None:
    excused = rows.is_text("phase", "backward") & np.isin(rows.batch, skipped_batches(info))
    bad = rows.bad & ~excused
    effects = np.flatnonzero(bad & ~rows.is_text("role", "input"))
    return None if effects.size == 0 else _cause(rows, bad, int(effects[0]))


def _cause(rows: Rows, bad: Mask, effect: int) -> Value:
    """What fed the first bad effect, where its own frame or the frames around it show that."""
    beside = bad & (rows.seq == rows.seq[effect])
    for role in ("optimizer_state", "parameter", "buffer", "grad_output"):
        found = np.flatnonzero(beside & rows.is_text("role", role))
        if found.size:
            return rows.values(found[:1])[0]
    value = rows.values(np.array([effect]))[0]
    received = _received(rows, bad, value) if value.phase == "forward" else ()
    return min(received, key=lambda one: len(one.module)) if received else value


def _received(rows: Rows, bad: Mask, value: Value) -> tuple[Value, ...]:
    """Bad inputs of this frame and of the frames around it (which end later)."""
    mask = bad & rows.is_text("role", "input") & rows.is_text("phase", "forward")
    mask &= rows.is_text("module", *surrounding(value.module)) & (rows.batch == value.batch) & (rows.seq >= value.seq)
    if not (mask & (rows.seq == value.seq)).any():
        mask[:] = False
    return rows.values(mask)


def surrounding(module: str) -> list[str]:
    """A module and all modules around it, innermost first: "a.b", "a", ""."""
    names = [module]
    while names[-1]:
        names.append(names[-1].rpartition(".")[0])
    return names


def _source(rows: Rows, first: Value) -> Source:
    if first.phase == "optimizer":
        same_batch = rows.bad & (rows.batch == first.batch)
        return Source.GRADIENT if (same_batch & rows.is_text("role", "gradient")).any() else Source.BORN
    find = _SOURCES.get(first.role)
    return Source.UNKNOWN if find is None else find(rows, first)


def _source_of_output(rows: Rows, first: Value) -> Source:
    return Source.EARLIER if _beside(rows, first, "parameter", "buffer", "input") else Source.BORN


def _source_of_input(rows: Rows, first: Value) -> Source:
    if first.module == "":
        return Source.DATA
    same_batch = rows.bad & (rows.batch == first.batch) & rows.is_text("phase", "forward")
    if (same_batch & rows.is_text("module", "") & rows.is_text("role", "input")).any():
        return Source.DATA
    before = same_batch & (rows.seq < first.seq) & rows.is_text("role", "output")
    return Source.EARLIER if before.any() else Source.BETWEEN


def _source_of_grad_input(rows: Rows, first: Value) -> Source:
    return Source.EARLIER if _beside(rows, first, "grad_output") else Source.BORN


def _source_of_gradient(rows: Rows, first: Value) -> Source:
    came_in = rows.bad & rows.is_text("role", "grad_output") & rows.is_text("module", first.module)
    return Source.EARLIER if (came_in & (rows.batch == first.batch)).any() else Source.BORN


def _beside(rows: Rows, first: Value, *roles: str) -> bool:
    return bool((rows.bad & (rows.seq == first.seq) & rows.is_text("role", *roles)).any())


_SOURCES: dict[str, Callable[[Rows, Value], Source]] = {
    "output": _source_of_output,
    "input": _source_of_input,
    "parameter": lambda *_: Source.WEIGHT,
    "buffer": lambda *_: Source.BUFFER,
    "grad_output": lambda *_: Source.AFTER,
    "grad_input": _source_of_grad_input,
    "gradient": _source_of_gradient,
}
