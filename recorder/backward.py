"""Assembles backward frames from gradients as they arrive, and names the module in which one went bad."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from recorder.clock import Clock
from recorder.frames import OpenFrame
from recorder.gradients import BackwardFrame, Target
from recorder.records import Frame, TensorRecord
from recorder.schema import Phase, Role


@dataclass(slots=True)
class Arrival:
    """A gradient that arrived: what it is to each module call, and its numbers.

    `parameter` is set, and there are no targets, for the accumulated gradient of a parameter.
    """

    targets: tuple[Target, ...]
    record: TensorRecord
    parameter: OpenFrame | None = None


class Delivered(NamedTuple):
    """The frames an arrival completed, and the place where a bad gradient was born."""

    frames: list[Frame]
    bad_frame: Frame | None = None
    bad_record: TensorRecord | None = None


class BackwardAssembly:
    """Backward frames under way. `excuse(module, record)` says whether a bad gradient is expected."""

    def __init__(self, clock: Clock, excuse: Callable[[str, TensorRecord], bool]) -> None:
        self._clock = clock
        self._excuse = excuse
        self._under_way: dict[BackwardFrame, None] = {}

    def deliver(self, arrival: Arrival) -> Delivered:
        if arrival.parameter is not None:
            return self._deliver_parameter(arrival.parameter, arrival.record)
        records = {id(target): self._add(target, arrival.record) for target in arrival.targets}
        culprit = culprit_of(arrival.targets) if arrival.record.statistics.flagged else None
        # targets are in forward order, and a gradient goes the other way: out of a call first, then into the one before
        complete = (t.backward for t in reversed(arrival.targets) if t.backward.is_complete)
        frames = [self._close(backward) for backward in complete if not backward.emitted]
        if culprit is None:
            return Delivered(frames)
        bad = next((f for f in frames if _is_of(f, culprit)), None)
        if bad is None:
            bad = self._close(culprit.backward)
            frames.append(bad)
        return Delivered(frames, bad, records[id(culprit)])

    def finish(self) -> list[Frame]:
        """Close what a finished backward left incomplete: outputs that were not used have no gradient."""
        return [self._close(backward) for backward in list(self._under_way)]

    def _marked(self, owner: OpenFrame, record: TensorRecord) -> TensorRecord:
        if not record.statistics.flagged:
            return record
        return record._replace(expected=self._excuse(owner.path, record))

    def _add(self, target: Target, record: TensorRecord) -> TensorRecord:
        backward = target.backward
        if backward.emitted:  # a second backward through a retained graph
            backward.records.clear()
            backward.emitted = False
        record = self._marked(backward.owner, record._replace(role=target.role, key=target.key))
        backward.records.append(record)
        self._under_way[backward] = None
        return record

    def _close(self, backward: BackwardFrame) -> Frame:
        backward.emitted = True
        self._under_way.pop(backward, None)
        return backward.frame(self._clock.next_seq(), time.time_ns())

    def _deliver_parameter(self, owner: OpenFrame, record: TensorRecord) -> Delivered:
        record = self._marked(owner, record)
        frame = owner.frame(self._clock.next_seq(), time.time_ns(), (record,))._replace(phase=Phase.BACKWARD)
        return Delivered([frame], frame, record) if record.statistics.flagged else Delivered([frame])


def culprit_of(targets: tuple[Target, ...]) -> Target | None:
    """Which module call made a bad gradient; None when all it went through had received a bad one already.

    The gradient left the innermost call whose own grad_output was finite. If it went into no call, the code after
    the module made it, and the outermost module whose output it belongs to received it first. A call that got no
    gradient at all (a rotary embedding takes its input's dtype and no more) made none either.
    """
    consumers = [target for target in targets if target.role is Role.GRAD_INPUT]
    if not consumers:
        return min(targets, key=_depth, default=None)
    clean = [target for target in consumers if not target.backward.bad(Role.GRAD_OUTPUT)]
    passed_through = [target for target in clean if target.backward.has(Role.GRAD_OUTPUT)]
    return max(reversed(passed_through or clean), key=_depth, default=None)


def _depth(target: Target) -> int:
    owner = target.backward.owner
    return owner.plan.depths[owner.path]


def _is_of(frame: Frame, target: Target) -> bool:
    owner = target.backward.owner
    return (frame.module, frame.call) == (owner.path, owner.call)
