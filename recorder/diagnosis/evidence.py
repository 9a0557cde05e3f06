"""What a dump holds around the birth: all that the patterns and the words need, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from recorder.diagnosis.birth import Birth, Source, surrounding
from recorder.diagnosis.rows import Indices, Mask, Rows, Value
from recorder.schema import BatchInfo, DtypeLimits, RunInfo

WINDOW = 2_000
"""How many records before the birth are looked at for what was large on the way."""
FRAME_LIMIT = 400
"""A frame with more records than this is looked at in part."""
BATCHES_SHOWN = 4
_NEVER_CALLED = ("ModuleList", "ModuleDict")

STANDARD_LIMITS = {
    "float16": DtypeLimits(65504.0, 2.0**-14, 2.0**-24, 2.0**-10, 16),
    "bfloat16": DtypeLimits((2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7, 16),
    "float32": DtypeLimits((2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2.0**-23, 32),
    "float64": DtypeLimits((2 - 2.0**-52) * 2.0**1023, 2.0**-1022, 2.0**-1074, 2.0**-52, 64),
}
"""IEEE 754 and bfloat16, for a dump whose metadata was lost with its process."""


@dataclass(frozen=True)
class Step:
    """What the optimizer phase and the gradients of the birth's batch look like, counted by record."""

    parameters: int = 0
    bad_parameters: int = 0
    gradients: int = 0
    bad_gradients: int = 0


@dataclass(frozen=True)
class Spread:
    """What came after the birth: frames with a result, those of them that are bad, the first of their modules.

    batches: how many batches further the dump goes.
    """

    frames: int = 0
    bad_frames: int = 0
    modules: tuple[str, ...] = ()
    module_count: int = 0
    batches: int = 0
    reached_output: bool = False


@dataclass(frozen=True)
class Evidence:
    """The birth and its surroundings.

    first: the first bad value. frame: all records of its frame. maker: a value of the module whose code made it.
    forward: the maker's forward frame in the batch, as far as the dump has it.
    chain: the largest result of each of the last frames before, oldest first. largest: the largest result before it
    in its batch and dtype. history: (batch, abs max) at the same place in earlier batches, oldest first.
    """

    first: Value
    source: Source = Source.BORN
    frame: tuple[Value, ...] = ()
    forward: tuple[Value, ...] = ()
    chain: tuple[Value, ...] = ()
    largest: Value | None = None
    history: tuple[tuple[int, float], ...] = ()
    spread: Spread = Spread()
    step: Step = Step()
    ran_before: bool = False
    was_finite: int | None = None
    limits: Mapping[str, DtypeLimits] = field(default_factory=lambda: dict(STANDARD_LIMITS))
    batches: tuple[BatchInfo, ...] = ()
    evicted: int = 0
    first_batch: int = 0
    masks_nearby: bool = False
    around: Value | None = None

    @property
    def maker(self) -> Value:
        """A value of the module whose code made the bad one: between modules, that of the module around."""
        return self.around if self.source is Source.BETWEEN and self.around is not None else self.first

    @property
    def limit(self) -> DtypeLimits | None:
        """Limits of the first bad value's dtype; None where they are not known."""
        return self.limits.get(self.first.dtype)

    def facts_of(self, batch: int) -> BatchInfo | None:
        return next((one for one in self.batches if one.batch == batch), None)


def gather(rows: Rows, birth: Birth, info: RunInfo) -> Evidence:
    """Collect the evidence; reads slices of the table, once each."""
    first = birth.first
    limits = limits_of(info)
    frame = _frame_of(rows, first)
    around, around_frame = _around(rows, first, info)
    forward = frame if first.phase == "forward" else _forward_of(rows, first)
    same_batch = rows.batch == first.batch
    before = _before(rows, first, same_batch)
    return Evidence(
        first=first,
        source=birth.source,
        frame=frame,
        forward=around_frame if birth.source is Source.BETWEEN else forward,
        chain=_chain(rows, before, limits),
        largest=_largest(rows, before, first.dtype),
        history=history_of(rows, first),
        spread=_spread(rows, first),
        step=_step(rows, same_batch),
        ran_before=bool((rows.seq < first.seq).any()),
        was_finite=_last_finite(rows, first),
        limits=limits,
        batches=info.batches,
        evicted=info.evicted,
        first_batch=int(rows.batch[0]) if len(rows) else 0,
        masks_nearby=_masks_nearby(rows, same_batch, first, info),
        around=around,
    )


def limits_of(info: RunInfo) -> dict[str, DtypeLimits]:
    return {**STANDARD_LIMITS, **{name: limit for name, limit in info.finfo.items() if limit is not None}}


def _before(rows: Rows, first: Value, same_batch: Mask) -> Indices:
    """Records of the batch and phase before it. What runs inside the module that a bad input went into is after it."""
    before = np.flatnonzero(same_batch & (rows.seq < first.seq) & _of_phase(rows, first.phase))
    if first.role != "input" or not first.module:
        return before
    inside = {name for name in rows.distinct("module", before) if name.startswith(first.module + ".")}
    return before[~rows.is_text("module", *inside)[before]]


def _of_phase(rows: Rows, phase: str) -> Mask:
    return rows.is_text("phase", phase)


def _frame_of(rows: Rows, first: Value) -> tuple[Value, ...]:
    low, high = np.searchsorted(rows.seq, [first.seq, first.seq + 1])
    same = np.arange(low, min(high, low + FRAME_LIMIT))
    found = rows.values(same[rows.is_text("module", first.module)[same]]) if same.size else ()
    return found or (first,)


def _forward_of(rows: Rows, first: Value) -> tuple[Value, ...]:
    """The forward frame that a backward or optimizer frame answers to; of several calls, the same or the last."""
    mask = _of_phase(rows, "forward") & rows.is_text("module", first.module) & (rows.batch == first.batch)
    same_call = mask & (rows.whole("call") == first.call)
    found = np.flatnonzero(same_call if same_call.any() and first.role != "gradient" else mask)
    return rows.values(found[rows.seq[found] == rows.seq[found[-1]]][:FRAME_LIMIT]) if found.size else ()


def _around(rows: Rows, first: Value, info: RunInfo) -> tuple[Value | None, tuple[Value, ...]]:
    """The nearest module around it whose forward runs, and its frame in this batch if the dump has that."""
    outer = _of_phase(rows, "forward") & (rows.batch == first.batch) & (rows.seq >= first.seq)
    classes = {one.name: one.module_class for one in info.modules}
    for name in surrounding(first.module)[1:]:
        found = np.flatnonzero(outer & rows.is_text("module", name))
        if found.size:
            frame = rows.values(found[rows.seq[found] == rows.seq[found[0]]][:FRAME_LIMIT])
            return frame[0], frame
        if classes.get(name, "ModuleList") not in _NEVER_CALLED:
            return replace(first, module=name, module_class=classes[name]), ()
    return None, ()


def _chain(rows: Rows, before: Indices, limits: Mapping[str, DtypeLimits], length: int = 4) -> tuple[Value, ...]:
    """The largest result of each of the last frames; a frame that ends right after its own child says nothing new."""
    recent = before[-WINDOW:]
    results = recent[_is_result(rows, limits)[recent]]
    chosen: list[int] = []
    for index in _peak_of_each_frame(rows, results)[::-1]:
        module = rows.texts("module", np.array([index]))[0]
        if len(chosen) == length:
            break
        if not _has_child_before(rows, results, index, module):
            chosen.append(int(index))
    return rows.values(np.array(chosen[::-1], dtype=np.intp))


def _is_result(rows: Rows, limits: Mapping[str, DtypeLimits]) -> Mask:
    result = rows.is_text("role", "output", "grad_input") & rows.is_text("dtype", *limits)
    return result & np.isfinite(rows.number("abs_max")) & ~rows.truth("flagged")


def _peak_of_each_frame(rows: Rows, indices: Indices) -> list[int]:
    """Per frame the record with the largest abs max, in order."""
    peaks: dict[int, int] = {}
    sizes = rows.number("abs_max")
    for index in indices:
        seq = int(rows.seq[index])
        if seq not in peaks or sizes[index] > sizes[peaks[seq]]:
            peaks[seq] = int(index)
    return list(peaks.values())


def _has_child_before(rows: Rows, results: Indices, index: int, module: str) -> bool:
    earlier = results[rows.seq[results] < rows.seq[index]][-1:]
    if earlier.size == 0:
        return False
    last = rows.texts("module", earlier)[0]
    return last != module and (module == "" or last.startswith(module + "."))


def _largest(rows: Rows, before: Indices, dtype: str) -> Value | None:
    flowing = rows.is_text("role", "input", "output", "grad_input", "grad_output")
    same = before[(rows.is_text("dtype", dtype) & flowing)[before]]
    sizes = rows.number("abs_max")[same]
    if same.size == 0 or np.isnan(sizes).all():
        return None
    return rows.values(same[[int(np.nanargmax(sizes))]])[0]


def history_of(rows: Rows, first: Value) -> tuple[tuple[int, float], ...]:
    """The abs max at this very place in earlier batches, where it was finite."""
    place = rows.is_text("module", first.module) & rows.is_text("key", first.key)
    place &= rows.is_text("role", first.role) & _of_phase(rows, first.phase) & (rows.batch < first.batch)
    place &= np.isfinite(rows.number("abs_max")) & ~rows.truth("flagged")
    peaks: dict[int, float] = {}
    for batch, size in zip(rows.batch[place], rows.number("abs_max")[place], strict=True):
        peaks[int(batch)] = max(float(size), peaks.get(int(batch), 0.0))
    return tuple(sorted(peaks.items())[-BATCHES_SHOWN:])


def _spread(rows: Rows, first: Value) -> Spread:
    results = rows.is_text("role", "output", "grad_input", "gradient") | _of_phase(rows, "optimizer")
    later = np.flatnonzero((rows.seq > first.seq) & results)
    bad = later[rows.bad[later]]
    bad_frames = rows.frame_starts(bad)
    root = rows.is_text("module", "") & rows.is_text("role", "output")
    return Spread(
        frames=len(rows.frame_starts(later)),
        bad_frames=len(bad_frames),
        modules=tuple(dict.fromkeys(rows.texts("module", bad_frames[:50]))),
        batches=int(rows.batch[later].max()) - first.batch if later.size else 0,
        module_count=len(rows.distinct("module", bad)),
        reached_output=bool(root[bad].any()),
    )


def _step(rows: Rows, same_batch: Mask) -> Step:
    parameters = same_batch & _of_phase(rows, "optimizer") & rows.is_text("role", "parameter")
    gradients = same_batch & rows.is_text("role", "gradient")
    return Step(*(int(mask.sum()) for mask in _with_bad(rows, parameters, gradients)))


def _with_bad(rows: Rows, *masks: Mask) -> Iterable[Mask]:
    for mask in masks:
        yield mask
        yield mask & rows.bad


def _last_finite(rows: Rows, first: Value) -> int | None:
    """The last batch before in which this parameter or buffer was seen finite."""
    if first.role not in ("parameter", "buffer", "optimizer_state"):
        return None
    place = rows.is_text("module", first.module) & rows.is_text("key", first.key) & rows.is_text("role", first.role)
    seen = rows.batch[place & (rows.seq < first.seq) & ~rows.bad & np.isfinite(rows.number("abs_max"))]
    return int(seen.max()) if seen.size else None


def _masks_nearby(rows: Rows, same_batch: Mask, first: Value, info: RunInfo) -> bool:
    """Whether an expected -inf was seen in this batch, or taken as legitimate in this module or around it."""
    if (same_batch & rows.truth("expected") & rows.truth("flagged")).any():
        return True
    around = surrounding(first.module)
    return any(one.module in around or one.module.startswith(first.module) for one in info.suppressed)
