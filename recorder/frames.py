"""Frames while they are being made: a module call from its entry to its exit."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from torch import nn

from recorder.clock import Clock
from recorder.meter import Measured
from recorder.modules import ModulePlan
from recorder.records import Frame, TensorRecord
from recorder.schema import Phase, Role

_CALL = nn.Module._call_impl.__code__


class OpenFrame:
    """A module call that has begun. Compared by identity.

    inputs: records of what it received. flagged: whether any of its records is.
    child_flagged: whether a module inside put out an abnormal value; child_outputs: the expected ones.
    """

    __slots__ = (
        "backward",
        "batch",
        "call",
        "child_flagged",
        "child_outputs",
        "flagged",
        "inputs",
        "module",
        "parent",
        "path",
        "plan",
        "recompute",
        "step",
        "training",
    )

    def __init__(
        self,
        plan: ModulePlan,
        module: nn.Module,
        path: str,
        call: int,
        batch: int,
        step: int,
        training: bool,
        recompute: bool,
        parent: OpenFrame | None,
    ) -> None:
        self.plan = plan
        self.module = module
        self.path = path
        self.call = call
        self.batch = batch
        self.step = step
        self.training = training
        self.recompute = recompute
        self.parent = parent
        self.inputs: list[TensorRecord] = []
        self.flagged = False
        self.child_flagged = False
        self.child_outputs: list[TensorRecord] | None = None
        self.backward: Any = None

    def frame(self, seq: int, t_ns: int, records: tuple[TensorRecord, ...]) -> Frame:
        return Frame(
            self.batch,
            self.step,
            seq,
            self.call,
            t_ns,
            Phase.FORWARD,
            self.path,
            self.plan.module_class,
            self.plan.depths[self.path],
            self.training,
            self.recompute,
            records,
        )


def standing_frame(
    clock: Clock, plan: ModulePlan, module: nn.Module, path: str, *, training: bool, call: int = 0
) -> OpenFrame:
    """A frame for what is looked at outside a module call: weights before a batch or after a step, a gradient."""
    return OpenFrame(plan, module, path, call, clock.current_batch, clock.step, training, False, None)


class CallStack(threading.local):
    """The open frames of this thread, outermost first."""

    def __init__(self) -> None:
        self.frames: list[OpenFrame] = []

    def innermost(self) -> OpenFrame | None:
        return self.frames[-1] if self.frames else None

    def reset(self) -> None:
        self.frames.clear()

    def drop_recomputation(self) -> None:
        """Drop recomputed frames that never ended: a checkpoint stops as soon as it has the tensors that it needs."""
        while self.frames and self.frames[-1].recompute:
            self.frames.pop()

    def close(self, plan: ModulePlan) -> OpenFrame | None:
        """Take the innermost open frame of this module off, and what an exception left open above it."""
        for position in range(len(self.frames) - 1, -1, -1):
            if self.frames[position].plan is plan:
                frame = self.frames[position]
                del self.frames[position:]
                return frame
        return None


def calls_under_way(module: nn.Module) -> int:
    """How many calls of the module this thread is inside of."""
    count = 0
    running: FrameType | None = sys._getframe()
    while running is not None:
        count += running.f_code is _CALL and running.f_locals.get("self") is module
        running = running.f_back
    return count


def record_of(role: Role, key: str, measured: Measured) -> TensorRecord:
    # the statistics are still a Row while the numbers wait on their device; FrameStream resolves them
    statistics: Any = measured.statistics
    return TensorRecord(role, key, measured.layout, statistics)
