"""Gradients that vanish over a whole batch: what no single frame shows."""

from __future__ import annotations

from collections.abc import Iterator

from recorder.records import Frame, TensorRecord
from recorder.schema import DtypeLimits, Phase, Role, SilentWarning

_LOW_PRECISION = ("float16", "bfloat16")


class BatchGradients:
    """The backward frames of one batch, as far as vanishing gradients need them.

    Two rules, both `underflow`. A parameter's gradient is zero though its module's grad_output was not, and that
    lay below the smallest normal number of its dtype. And: every parameter gradient of the batch is zero, the
    first grad_output that was zero is in a low precision, and one before it was not zero.
    """

    def __init__(self) -> None:
        self._sources: dict[str, TensorRecord] = {}
        self._zero_gradients: list[tuple[Frame, TensorRecord]] = []
        self._any_gradient = False
        self._any_nonzero = False
        self._first_zero: tuple[Frame, TensorRecord] | None = None

    def see(self, frame: Frame) -> None:
        for record in frame.records:
            if record.statistics.abs_max is None or record.statistics.flagged:
                continue
            if record.role is Role.GRADIENT:
                self._see_gradient(frame, record)
            elif record.role is Role.GRAD_OUTPUT:
                self._see_source(frame, record)

    def warnings(self, finfo: dict[str, DtypeLimits]) -> Iterator[SilentWarning]:
        """What the batch shows now that it is over."""
        if self._any_gradient and not self._any_nonzero:
            if self._first_zero is not None:
                yield _all_zero(*self._first_zero)
            return
        for frame, record in self._zero_gradients:
            source = self._sources.get(frame.module)
            limits = finfo.get(source.layout.dtype) if source is not None else None
            if source is None or limits is None or not source.statistics.abs_max:
                continue
            if source.statistics.abs_max < limits.smallest_normal:
                yield _vanished(frame, record, source.statistics.abs_max, limits)

    def _see_gradient(self, frame: Frame, record: TensorRecord) -> None:
        self._any_gradient = True
        if record.statistics.abs_max:
            self._any_nonzero = True
        else:
            self._zero_gradients.append((frame, record))

    def _see_source(self, frame: Frame, record: TensorRecord) -> None:
        before = self._sources.get(frame.module)
        if before is None or (record.statistics.abs_max or 0.0) > (before.statistics.abs_max or 0.0):
            self._sources[frame.module] = record
        if record.statistics.abs_max == 0.0 and self._first_zero is None and record.layout.dtype in _LOW_PRECISION:
            self._first_zero = (frame, record)


def _all_zero(frame: Frame, record: TensorRecord) -> SilentWarning:
    text = (
        f"every gradient of batch {frame.batch} is zero; the first to be was grad_output of "
        f"{frame.module or 'the root'} ({frame.module_class}) in {record.layout.dtype}: scale the loss"
    )
    return _warning(frame, record, text, {})


def _vanished(frame: Frame, record: TensorRecord, source: float, limits: DtypeLimits) -> SilentWarning:
    text = (
        f"gradient {record.key} of {frame.module or 'the root'} ({frame.module_class}) is all zero in "
        f"{record.layout.dtype}, though grad_output was not: {source:.2g}, below the smallest normal number "
        f"{limits.smallest_normal:.2g}"
    )
    return _warning(frame, record, text, {"grad_output_abs_max": source})


def _warning(frame: Frame, record: TensorRecord, text: str, numbers: dict[str, float]) -> SilentWarning:
    phase = Phase.BACKWARD.value
    return SilentWarning("underflow", frame.batch, phase, frame.module, record.role.value, record.key, text, numbers)
