"""Silent failures: nothing is non-finite, and something is wrong all the same. Warnings, never triggers.

Each rule is a function of one frame; its docstring says what it holds and which numbers stand behind it.
All of them work on `stats="minmax"`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from recorder.records import Frame, TensorRecord
from recorder.schema import DtypeLimits, Phase, Role, SilentWarning
from recorder.silent_gradients import BatchGradients

MAX_WARNINGS = 256
"""A warning is given once for each kind and place; beyond this many the first ones tell enough."""

HEADROOM_BINADES = 2.0
DEAD_BATCHES = 8

_MAY_PUT_OUT_ZEROS = ("ReLU", "Dropout", "Threshold", "Hardtanh", "Hardshrink", "Softshrink", "Sparsemax", "Identity")
"""Classes (by part of their name) whose all-zero output is their business: an inactive unit, a dropped path."""


class SilentRules:
    """Runs the rules over frames as they pass, and keeps the warnings. `finfo` grows as dtypes are seen."""

    def __init__(self, finfo: dict[str, DtypeLimits]) -> None:
        self._finfo = finfo
        self._kept: dict[tuple[str, str, str, str], SilentWarning] = {}
        self._zero_streaks: dict[tuple[str, int], int] = {}
        self._last_zeros: str | None = None
        self._peaks: dict[str, tuple[int, float]] = {}
        self._last_near_limit: tuple[int, float] | None = None
        self._gradients = BatchGradients()
        self._subnormal_batch: int | None = None

    @property
    def warnings(self) -> tuple[SilentWarning, ...]:
        return tuple(self._kept.values())

    def see(self, frame: Frame) -> None:
        """Apply the rules of the frame's phase. A frame with abnormal values has a louder story than these."""
        if frame.recompute or len(self._kept) >= MAX_WARNINGS:
            return
        if frame.phase is Phase.FORWARD:
            self._see_forward(frame)
        elif frame.phase is Phase.BACKWARD:
            self._gradients.see(frame)
            self._see_backward(frame)

    def end_batch(self) -> None:
        """Apply the rules that need the whole backward."""
        for warning in self._gradients.warnings(self._finfo):
            self.add(warning)
        self._gradients = BatchGradients()

    def add(self, warning: SilentWarning) -> None:
        """Keep a warning, once for each kind and place."""
        self._kept.setdefault((warning.kind, warning.module, warning.role, warning.key), warning)

    def _see_backward(self, frame: Frame) -> None:
        for warning in zero_gradients(frame, self._finfo):
            self.add(warning)
        if self._subnormal_batch != frame.batch:
            subnormal = subnormal_gradient(frame, self._finfo)
            if subnormal is not None:  # the gradients behind it come from it: the first of a batch tells
                self._subnormal_batch = frame.batch
                self.add(subnormal)

    def _see_forward(self, frame: Frame) -> None:
        passes_zeros_on = self._last_zeros is not None and _is_inside(self._last_zeros, frame.module)
        self._last_zeros = None
        for record in frame.records:
            if record.role is not Role.OUTPUT or record.statistics.abs_max is None:
                continue
            largest = record.statistics.abs_max
            if largest == 0.0:
                self._last_zeros = frame.module
                if not passes_zeros_on:
                    self._see_zeros(frame, record)
            elif self._zero_streaks:
                self._zero_streaks.pop((frame.module, frame.call), None)
            limits = self._finfo.get(record.layout.dtype)
            if limits is not None and largest * 2**HEADROOM_BINADES >= limits.max:
                self._see_headroom(frame, record, limits)

    def _see_zeros(self, frame: Frame, record: TensorRecord) -> None:
        for warning in zeroed_output(frame, record, self._finfo):
            self.add(warning)
        if not frame.training or not _has_nonzero(frame, Role.INPUT) or _has_zero_weights(frame):
            return
        place = (frame.module, frame.call)
        self._zero_streaks[place] = self._zero_streaks.get(place, 0) + 1
        if self._zero_streaks[place] == DEAD_BATCHES:
            text = f"{_name(frame)} has put out nothing but zeros for {DEAD_BATCHES} batches"
            self.add(_warning("dead", frame, record, text, batches=DEAD_BATCHES))

    def _see_headroom(self, frame: Frame, record: TensorRecord, limits: DtypeLimits) -> None:
        largest = record.statistics.abs_max or 0.0
        masked = any(r.statistics.abs_max == limits.max for r in frame.records)
        if masked or record.statistics.flagged or self._last_near_limit == (frame.batch, largest):
            return  # finfo.min stands for "masked": it is at the limit on purpose; the same value again is passed on
        self._last_near_limit = (frame.batch, largest)
        left = math.log2(limits.max / largest)
        before = self._peaks.get(frame.module)
        text = f"{_name(frame)} puts out {largest:.3g} in {record.layout.dtype}, limit {limits.max:.3g}: "
        text += f"{left:.1f} binades left" + _trend(before, frame.batch, largest, limits.max)
        self._peaks[frame.module] = (frame.batch, largest)
        self._kept[("headroom", frame.module, record.role.value, record.key)] = _warning(
            "headroom", frame, record, text, abs_max=largest, limit=limits.max, binades_left=left
        )


def zeroed_output(frame: Frame, record: TensorRecord, finfo: dict[str, DtypeLimits]) -> Iterator[SilentWarning]:
    """An all-zero output from an input whose square does not fit its dtype: x / sqrt(mean(x * x)) became x / inf.

    Numbers: the input's abs_max, and the square root of the dtype's limit (256 in float16). The same for an
    input so small that its square is zero is `underflow`.
    """
    if _has_zero_weights(frame) or any(part in frame.module_class for part in _MAY_PUT_OUT_ZEROS):
        return
    for source in frame.records:
        limits = finfo.get(source.layout.dtype)
        largest = source.statistics.abs_max
        if source.role is not Role.INPUT or limits is None or not largest or largest == limits.max:
            continue
        if largest > math.sqrt(limits.max):
            text = (
                f"{_name(frame)} turned an input of up to {largest:.3g} into zeros: its square does not fit "
                f"{source.layout.dtype} (limit {limits.max:.3g})"
            )
            yield _warning("zeroed", frame, record, text, input_abs_max=largest, limit=limits.max)
        elif largest * largest < limits.smallest_subnormal:
            text = f"{_name(frame)} turned an input of up to {largest:.3g} into zeros: its square is 0"
            text += f" in {source.layout.dtype}"
            yield _warning("underflow", frame, record, text, input_abs_max=largest)


def zero_gradients(frame: Frame, finfo: dict[str, DtypeLimits]) -> Iterator[SilentWarning]:
    """A grad_input that is zero though the grad_output it came from was not, and lay near the bottom of its dtype.

    Numbers: abs_max of that grad_output, and the dtype's smallest normal number, below which it lies. A ReLU whose
    units are all inactive has a zero gradient by right, so a larger grad_output proves nothing.
    """
    source = max((r.statistics.abs_max or 0.0 for r in frame.records if r.role is Role.GRAD_OUTPUT), default=0.0)
    for record in frame.records:
        limits = finfo.get(record.layout.dtype)
        if limits is None or record.role is not Role.GRAD_INPUT or record.statistics.abs_max != 0.0:
            continue
        if 0.0 < source < limits.smallest_normal:
            text = (
                f"{record.role.value} of {_name(frame)} is all zero in {record.layout.dtype}, though grad_output "
                f"was not: {source:.2g}, below the smallest normal number {limits.smallest_normal:.2g}"
            )
            yield _warning("underflow", frame, record, text, grad_output_abs_max=source)


def subnormal_gradient(frame: Frame, finfo: dict[str, DtypeLimits]) -> SilentWarning | None:
    """A gradient all of whose elements are subnormal or zero. Numbers: its abs_max, and the smallest normal number."""
    for record in frame.records:
        limits = finfo.get(record.layout.dtype)
        largest = record.statistics.abs_max
        if limits is None or largest is None or not 0.0 < largest < limits.smallest_normal:
            continue
        tensor = f"{record.role.value} {record.key}".rstrip()
        text = f"{tensor} of {_name(frame)} is wholly subnormal in {record.layout.dtype}"
        text += f": abs max {largest:.2g}"
        return _warning("underflow", frame, record, text, abs_max=largest, smallest_normal=limits.smallest_normal)
    return None


def _trend(before: tuple[int, float] | None, batch: int, largest: float, limit: float) -> str:
    """The growth since the last such batch, carried on to the limit."""
    if before is None or batch <= before[0] or largest <= before[1]:
        return ""
    growth = math.log2(largest / before[1]) / (batch - before[0])
    left = max(1, math.ceil(math.log2(limit / largest) / growth))
    return f"; at this growth it overflows in about {left} batch{'' if left == 1 else 'es'}"


def _is_inside(module: str, container: str) -> bool:
    return module != container and module.startswith(f"{container}." if container else "")


def _has_nonzero(frame: Frame, role: Role) -> bool:
    return any(record.role is role and record.statistics.abs_max for record in frame.records)


def _has_zero_weights(frame: Frame) -> bool:
    """Whether a weight is all zero, as the last layer of an adapter or of a residual branch is at the start."""
    return any(
        record.statistics.abs_max == 0.0 and not record.key.endswith("bias")
        for record in frame.records
        if record.role is Role.PARAMETER
    )


def _name(frame: Frame) -> str:
    return f"{frame.module or 'the root'} ({frame.module_class})"


def _warning(kind: str, frame: Frame, record: TensorRecord, text: str, **numbers: float) -> SilentWarning:
    return SilentWarning(
        kind, frame.batch, frame.phase.value, frame.module, record.role.value, record.key, text, numbers
    )
