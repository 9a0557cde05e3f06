"""The bodies of the forward hooks: follow module calls and hand their frames on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from recorder.clock import Clock
from recorder.compiled import Watched
from recorder.device_rows import Row
from recorder.frames import CallStack, OpenFrame, calls_under_way, record_of, standing_frame
from recorder.gradient_capture import GradientCapture
from recorder.guard import Guard
from recorder.meter import Meter
from recorder.modules import ModulePlan
from recorder.records import Frame, TensorRecord
from recorder.schema import Role
from recorder.stream import Event, FrameStream, Moment
from recorder.walk import leaves
from recorder.weights import Weights, has_weights, own_parameters

_POSITIONS = tuple(str(position) for position in range(256))


_FIRST_BATCHES = 3
"""A module that runs without its hooks does so from the start: later calls need not be looked at."""


class BatchObserver(Protocol):
    """Who is told where batches begin and end."""

    def begin_batch(self, training: bool) -> None: ...

    def entered(self, owner: OpenFrame) -> None: ...

    def end_forward(self, owner: OpenFrame, output: Any) -> None: ...

    def act_on_findings(self) -> None: ...


class Capture:
    """Turns entries and exits of modules into frames."""

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        meter: Meter,
        stream: FrameStream,
        observer: BatchObserver,
        gradients: GradientCapture | None,
        check: str,
    ) -> None:
        self.stack = CallStack()
        self._clock = clock
        self._guard = guard
        self._gradients = gradients
        self._meter = meter
        self._stream = stream
        self._observer = observer
        self._flush_each_frame = check == "frame"
        self._looked_again_in: int | None = None

    def on_enter(self, plan: ModulePlan, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs: Watched = list(zip(_POSITIONS, args))  # noqa: B905  args end first, or the rest is not recorded
        if kwargs:
            inputs += kwargs.items()
        self._guard.run(self._enter, plan, module, inputs, torch.is_grad_enabled())

    def on_enter_compiled(self, plan: ModulePlan, module: nn.Module, inputs: Watched) -> None:
        """As `on_enter`, called back from compiled code."""
        self._guard.run(self._enter, plan, module, inputs, False)

    def on_exit_compiled(self, plan: ModulePlan, module: nn.Module, outputs: Watched) -> None:
        """As `on_exit`, called back from compiled code."""
        self._guard.run(self._exit, plan, module, outputs, dict(outputs))

    def on_exit(self, plan: ModulePlan, module: nn.Module, output: Any) -> None:
        self._guard.run(self._exit, plan, module, (("", output),), output)

    def _enter(self, plan: ModulePlan, module: nn.Module, inputs: Watched, gradients: bool) -> None:
        recompute = torch._C._current_graph_task_id() != -1
        if not recompute:
            self.stack.drop_recomputation()
        if plan.is_root and not recompute and not self._is_nested(plan, module):
            self.stack.reset()
            self._observer.begin_batch(module.training)
        owner = self._open(plan, module, recompute)
        if owner.batch < _FIRST_BATCHES and not recompute:
            self._observer.entered(owner)
        if self._clock.recording and plan.recorded:
            if gradients and self._gradients is not None:
                owner.backward = self._gradients.open(owner)
            for key, value in inputs:
                self._add(owner, owner.inputs, Role.INPUT, key, value)
            self._stream.enter(owner, self._bad_weights_around(owner) if owner.flagged else ())

    def _bad_weights_around(self, owner: OpenFrame) -> Sequence[TensorRecord]:
        """Weights that the module around has written while it ran: what it hands on may be made of them."""
        parent = owner.parent
        if parent is None or not parent.plan.recorded:
            return ()
        if self._looked_again_in != owner.batch and _holds_nan_or_inf(owner.inputs):
            self._looked_again_in = owner.batch  # what follows in this batch follows from it
            self._meter.forget()
        return [record for record in _known_numbers(self._weights_of(parent)) if record.statistics.flagged]

    def _is_nested(self, plan: ModulePlan, module: nn.Module) -> bool:
        """Whether the root calls itself. One that is left on the stack by an exception is no longer running."""
        return any(frame.plan is plan for frame in self.stack.frames) and calls_under_way(module) > 1

    def _open(self, plan: ModulePlan, module: nn.Module, recompute: bool) -> OpenFrame:
        frames, clock = self.stack.frames, self._clock
        parent = frames[-1] if frames else None
        path = plan.path_under(parent.path if parent else None)
        call, batch = plan.next_call(path), clock.current_batch
        owner = OpenFrame(plan, module, path, call, batch, clock.step, module.training, recompute, parent)
        frames.append(owner)
        return owner

    def _exit(self, plan: ModulePlan, module: nn.Module, outputs: Watched, output: Any) -> None:
        owner = self.stack.close(plan)
        if owner is None:
            return
        if self._clock.recording and plan.recorded:
            weights, was_flagged = self._weights_of(owner), owner.flagged
            records = [*weights, *owner.inputs]
            for key, value in outputs:
                self._add(owner, records, Role.OUTPUT, key, value)
            if owner.flagged and not was_flagged and (module._parameters or _holds_nan_or_inf(records)):
                records[: len(weights)] = self._look_again(owner)
            self._emit(owner, records)
        if plan.is_root and not owner.recompute and not any(frame.plan is plan for frame in self.stack.frames):
            self._observer.end_forward(owner, output)

    def _weights_of(self, owner: OpenFrame) -> Sequence[TensorRecord]:
        plan, module = owner.plan, owner.module
        if not has_weights(module):
            return ()
        weights = plan.weights
        if weights is None or weights.generation != self._meter.generation or not weights.are_current(module):
            weights = plan.weights = self._look_at_weights(module)
        owner.flagged |= weights.flagged
        return weights.records

    def _look_again(self, owner: OpenFrame) -> Sequence[TensorRecord]:
        """The weights of a module that is about to be accused: edits of `.data` bump no version."""
        self._meter.forget()
        return self._weights_of(owner)

    def _look_at_weights(self, module: nn.Module) -> Weights:
        """Records of the module's own parameters and buffers, to be used again while none of them changes."""
        looked_at, records, flagged = [], [], False
        for role, tensors in ((Role.PARAMETER, own_parameters(module)), (Role.BUFFER, module._buffers)):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                measured = self._meter.measure(tensor)
                flagged |= measured.flagged
                records.append(record_of(role, name, measured))
                looked_at.append((role, name, tensor))
        return Weights(looked_at, records, flagged, self._meter.generation)

    def _add(self, owner: OpenFrame, records: list[TensorRecord], role: Role, key: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(owner, records, role, key, value)
            return
        for leaf_key, leaf in leaves(value, key, owner.plan.container_note(role)):
            if isinstance(leaf, torch.Tensor):
                self._add_tensor(owner, records, role, leaf_key, leaf)
            else:
                records.append(record_of(role, leaf_key, self._meter.measure_value(leaf)))

    def _add_tensor(
        self, owner: OpenFrame, records: list[TensorRecord], role: Role, key: str, tensor: torch.Tensor
    ) -> None:
        measured = self._meter.measure(tensor)
        records.append(record_of(role, key, measured))
        if measured.flagged:
            owner.flagged = True
        if owner.backward is not None and tensor.requires_grad:
            assert self._gradients is not None
            self._gradients.watch(owner.backward, role, key, tensor)

    def _emit(self, owner: OpenFrame, records: list[TensorRecord]) -> None:
        clock, stream = self._clock, self._stream
        stream.exit(owner, owner.frame(clock.next_seq(), time.time_ns(), tuple(records)))
        if self._flush_each_frame:
            stream.flush()
        if stream.has_findings:
            self._observer.act_on_findings()

    def scan_weights(self, modules: list[tuple[str, nn.Module, ModulePlan]], training: bool) -> None:
        """Look at every parameter and buffer before the batch runs, also those whose module is never called."""
        for path, module, plan in modules:
            if plan.recorded and has_weights(module) and path == plan.paths[0]:
                owner = standing_frame(self._clock, plan, module, path, training=training)
                records = self._weights_of(owner)
                if owner.flagged or self._meter.has_rows:
                    self._stream.push(Event(Moment.SCANNED, owner, self._frame_of(owner, records)))

    def emit_uncalled(self, modules: list[tuple[str, nn.Module, ModulePlan]], root: OpenFrame) -> None:
        """Write the weights of modules that no hook passed in this batch."""
        for path, module, plan in modules:
            if not plan.calls and plan.recorded and has_weights(module) and path == plan.paths[0]:
                owner = standing_frame(self._clock, plan, module, path, training=root.training)
                records = self._weights_of(owner)
                if records:
                    self._stream.exit(owner, self._frame_of(owner, records))

    def _frame_of(self, owner: OpenFrame, records: Sequence[TensorRecord]) -> Frame:
        return owner.frame(self._clock.next_seq(), time.time_ns(), tuple(records))

    def is_open(self, owner: OpenFrame) -> bool:
        """Whether this module call is still running in this thread."""
        return any(frame is owner for frame in self.stack.frames)

    def is_root_open(self) -> bool:
        """Whether a forward of the root is running in this thread."""
        return any(frame.plan.is_root and not frame.recompute for frame in self.stack.frames)

    def emit_open_frames(self) -> dict[OpenFrame, Frame]:
        """Write the frames that are still open, with what their modules received, outermost first.

        For a run that ends inside a forward: the innermost of them is where it ended.
        """
        frames = {}
        if torch._C._current_graph_task_id() == -1:
            self.stack.drop_recomputation()
        for owner in [frame for frame in self.stack.frames if frame.batch == self._clock.current_batch]:
            frames[owner] = self._frame_of(owner, [*self._weights_of(owner), *owner.inputs])
            self._stream.exit(owner, frames[owner])
        self.stack.reset()
        self._stream.flush()  # a dump follows, and what they hold may still be on a device
        return frames


def _known_numbers(records: Sequence[TensorRecord]) -> list[TensorRecord]:
    """Those whose numbers are read: beside a CPU tensor others may still wait on their device."""
    return [record for record in records if not isinstance(record.statistics, Row)]


def _holds_nan_or_inf(records: Sequence[TensorRecord]) -> bool:
    """Other than -inf, which a mask may have put there."""
    return any(record.statistics.num_nan or record.statistics.num_posinf for record in _known_numbers(records))
