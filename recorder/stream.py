"""Frames on their way to the ring: held back while their numbers are on a device, judged in order, written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from recorder.backward import Arrival, BackwardAssembly
from recorder.device_rows import Row
from recorder.frames import OpenFrame
from recorder.judge import Finding, Judge
from recorder.meter import Meter
from recorder.records import Frame, Statistics, TensorRecord


class Moment(Enum):
    """What happened to a module call."""

    SCANNED = "scanned"  # its parameters and buffers were looked at before the batch ran
    ENTERED = "entered"
    EXITED = "exited"
    STEPPED = "stepped"  # an optimizer step changed its parameters
    GRADIENT = "gradient"  # a gradient arrived


class Event(NamedTuple):
    """`frame` is there for all moments but ENTERED and GRADIENT; `arrival` for GRADIENT."""

    moment: Moment
    owner: OpenFrame
    frame: Frame | None = None
    arrival: Arrival | None = None


class Found(NamedTuple):
    """A finding, and the frame (with its owner) whose end brought it to light."""

    finding: Finding
    owner: OpenFrame
    frame: Frame


class FrameStream:
    """Delivers events to the judge, and judged frames to `write`, several at once. Findings wait to be taken."""

    def __init__(
        self, meter: Meter, judge: Judge, backward: BackwardAssembly, write: Callable[[list[Frame]], None]
    ) -> None:
        self._meter = meter
        self._judge = judge
        self._backward = backward
        self.write = write
        self._waiting: list[Event] = []
        self._findings: list[Found] = []

    @property
    def is_waiting(self) -> bool:
        """Whether frames are held back."""
        return bool(self._waiting)

    @property
    def has_findings(self) -> bool:
        return bool(self._findings)

    def take_findings(self) -> list[Found]:
        findings, self._findings = self._findings, []
        return findings

    def push(self, event: Event) -> None:
        """Deliver at once, or hold back behind numbers that are still on a device."""
        if self._waiting or self._meter.has_rows:
            self._waiting.append(event)
        else:
            self.write(self._deliver(event))

    def enter(self, owner: OpenFrame, bad_weights_around: Sequence[TensorRecord] = ()) -> None:
        """A module call begins, and its inputs are known."""
        if self._waiting or self._meter.has_rows:
            self._waiting.append(Event(Moment.ENTERED, owner))
        elif owner.flagged:
            self._judge.enter(owner, bad_weights_around)

    def exit(self, owner: OpenFrame, frame: Frame) -> None:
        """A module call has ended, and all that it held is known."""
        if self._waiting or self._meter.has_rows:
            self._waiting.append(Event(Moment.EXITED, owner, frame))
        elif owner.flagged or owner.child_flagged:
            self.write(self._deliver(Event(Moment.EXITED, owner, frame)))
        else:
            self.write([frame])

    def flush(self) -> None:
        """Read the devices (one host read each) and deliver what was held back."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        rows = {str(device): read for device, read in self._meter.read_rows().items()}
        self.write([frame for event in waiting for frame in self._deliver(_resolved(event, rows))])

    def _deliver(self, event: Event) -> list[Frame]:
        """Judge an event; the frames that it completes."""
        if event.moment is Moment.ENTERED:
            if _flagged(event.owner.inputs):
                self._judge.enter(event.owner)
            return []
        if event.arrival is not None:
            return self._deliver_gradient(event.owner, event.arrival)
        assert event.frame is not None
        frame, finding = self._judged(event.moment, event.owner, event.frame)
        if finding is not None:
            owner, found_in = (event.owner, frame) if finding.frame is None else (finding.owner, finding.frame)
            self._findings.append(Found(finding, owner, found_in))
        return [frame] if event.moment is not Moment.SCANNED or finding is not None else []

    def _deliver_gradient(self, owner: OpenFrame, arrival: Arrival) -> list[Frame]:
        delivered = self._backward.deliver(arrival)
        if delivered.bad_frame is not None and delivered.bad_record is not None:
            finding = Finding(owner, delivered.bad_record, delivered.bad_frame.origin)
            self._findings.append(Found(finding, owner, delivered.bad_frame))
        return delivered.frames

    def _judged(self, moment: Moment, owner: OpenFrame, frame: Frame) -> tuple[Frame, Finding | None]:
        if moment is not Moment.EXITED:
            return self._judge.scan(owner, frame) if _flagged(frame.records) else (frame, None)
        if owner.child_flagged or owner.flagged or _flagged(frame.records):
            return self._judge.exit(owner, frame)
        return frame, None


def _flagged(records: list[TensorRecord] | tuple[TensorRecord, ...]) -> bool:
    for record in records:
        statistics = record.statistics
        if statistics.num_nan or statistics.num_posinf or statistics.num_neginf:
            return True
    return False


def _resolved(event: Event, rows: dict[str, list[Statistics]]) -> Event:
    if event.moment is Moment.ENTERED:
        event.owner.inputs[:] = [_resolve(record, rows) for record in event.owner.inputs]
        return event
    if event.arrival is not None:
        event.arrival.record = _resolve(event.arrival.record, rows)
        return event
    assert event.frame is not None
    records = tuple(_resolve(record, rows) for record in event.frame.records)
    return event._replace(frame=event.frame._replace(records=records))


def _resolve(record: TensorRecord, rows: dict[str, list[Statistics]]) -> TensorRecord:
    if not isinstance(record.statistics, Row):
        return record
    return record._replace(statistics=rows[record.layout.device or ""][record.statistics])
