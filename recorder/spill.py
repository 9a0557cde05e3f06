"""Frames into the ring, and the ring out into dumps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from recorder.dump import DumpWriter, dump_name
from recorder.errors import RecorderError
from recorder.records import Frame
from recorder.ring import Ring
from recorder.schema import RunInfo, Trigger, TriggerKind

_Result = TypeVar("_Result")


class Spiller:
    """Appends frames to the ring and writes dumps of it.

    A traced batch that outgrows the ring goes on in its dump: what the ring would evict is written there first.
    A dump that the disk refuses is a warning, not the end of the run that it was to describe.
    """

    def __init__(self, directory: Path, rank: int, ring: Ring, info: Callable[[], RunInfo]) -> None:
        self._directory = directory
        self._rank = rank
        self._ring = ring
        self._info = info
        self._traced: Trigger | None = None
        self._traced_writer: DumpWriter | None = None
        self._traced_from = 0
        self.dumps: list[Path] = []

    def append(self, frames: list[Frame]) -> None:
        if self._traced is None and len(frames) > 1:
            self._ring.append_many(frames)
            return
        for frame in frames:
            self._make_room(len(frame.records))
            self._ring.append(frame)

    def _make_room(self, records: int) -> None:
        traced = self._traced
        if traced is not None and self._ring.position + records - self._traced_from > self._ring.capacity:
            self._attempt(lambda: self._write_traced(traced))

    def spill(self, trigger: Trigger) -> Path | None:
        """Write all that the ring holds as one dump; None when that failed."""
        return self._attempt(lambda: self._write_ring(trigger))

    def _write_ring(self, trigger: Trigger) -> Path:
        writer = DumpWriter(self._path(trigger))
        writer.write(self._ring.table())
        return self._finish(writer, trigger)

    def begin_trace(self, trigger: Trigger) -> None:
        self._traced = trigger
        self._traced_from = self._ring.position

    def end_trace(self) -> Path | None:
        """Write the dump of the traced batch, if one is under way."""
        if self._traced is None:
            return None
        trigger, self._traced = self._traced, None
        return self._attempt(lambda: self._finish_traced(trigger))

    def _finish_traced(self, trigger: Trigger) -> Path:
        self._write_traced(trigger)
        writer, self._traced_writer = self._traced_writer, None
        assert writer is not None
        return self._finish(writer, trigger)

    def _write_traced(self, trigger: Trigger) -> None:
        if self._traced_writer is None:
            self._traced_writer = DumpWriter(self._path(trigger))
        self._traced_writer.write(self._ring.table(self._traced_from))
        self._traced_from = self._ring.position

    def _attempt(self, write: Callable[[], _Result]) -> _Result | None:
        try:
            return write()
        except (OSError, RecorderError) as error:
            self._traced = self._traced_writer = None
            warnings.warn(f"Overflight could not write a dump: {error}. The run goes on.", RuntimeWarning, stacklevel=2)
            return None

    def _finish(self, writer: DumpWriter, trigger: Trigger) -> Path:
        path = writer.close(replace(self._info(), trigger=trigger, evicted=self._ring.evicted))
        self.dumps.append(path)
        return path

    def _path(self, trigger: Trigger) -> Path:
        return self._directory / dump_name(trigger.kind, trigger.batch, self._rank)


def place_of(kind: TriggerKind, frame: Frame, role: str | None = None, key: str | None = None) -> Trigger:
    """A trigger at one tensor of a frame."""
    return Trigger(
        kind.value, frame.batch, frame.step, frame.seq, frame.call, frame.phase.value, frame.module, role, key
    )
