"""The bodies of the forward hooks: follow module calls and hand their frames on."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from recorder.clock import Clock
from recorder.compiled import Watched
from recorder.device_rows import Row
from recorder.frames import CallStack, OpenFrame, calls_under_way, record_of
from recorder.gradient_capture import GradientCapture
from recorder.guard import Guard
from recorder.meter import Meter
from recorder.modules import ModulePlan
from recorder.records import Frame, TensorRecord
from recorder.schema import Role
from recorder.stream import Event, FrameStream, Moment
from recorder.walk import leaves


class BatchObserver(Protocol):
    """Who is told where batches begin and end."""

    def begin_batch(self, training: bool) -> None: ...

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

    def on_enter(self, plan: ModulePlan, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = [*((str(i), arg) for i, arg in enumerate(args)), *kwargs.items()]
        self._guard.run(self._enter, plan, module, inputs, torch.is_grad_enabled())

    def on_enter_compiled(self, plan: ModulePlan, module: nn.Module, inputs: Watched) -> None:
        """As `on_enter`, called back from compiled code."""
        self._guard.run(self._enter, plan, module, inputs, False)

    def on_exit_compiled(self, plan: ModulePlan, module: nn.Module, outputs: Watched) -> None:
        """As `on_exit`, called back from compiled code."""
        self._guard.run(self._exit, plan, module, outputs, dict(outputs))

    def on_exit(self, plan: ModulePlan, module: nn.Module, output: Any) -> None:
        self._guard.run(self._exit, plan, module, [("", output)], output)

    def _enter(self, plan: ModulePlan, module: nn.Module, inputs: Watched, gradients: bool) -> None:
        recompute = torch._C._current_graph_task_id() != -1
        if not recompute:
            self.stack.drop_recomputation()
        if plan.is_root and not recompute and not self._is_nested(plan, module):
            self.stack.reset()
            self._observer.begin_batch(module.training)
        owner = self._open(plan, module, recompute)
        if self._clock.recording and plan.recorded:
            backward = self._gradients.open(owner) if self._gradients is not None and gradients else None
            owner.backward = backward
            for key, value in inputs:
                self._add(owner, owner.inputs, Role.INPUT, key, value)
            self._stream.push(Event(Moment.ENTERED, owner))

    def _is_nested(self, plan: ModulePlan, module: nn.Module) -> bool:
        """Whether the root calls itself. One that is left on the stack by an exception is no longer running."""
        return any(frame.plan is plan for frame in self.stack.frames) and calls_under_way(module) > 1

    def _open(self, plan: ModulePlan, module: nn.Module, recompute: bool) -> OpenFrame:
        parent = self.stack.innermost()
        path = plan.path_under(parent.path if parent else None)
        clock = self._clock
        owner = OpenFrame(
            plan,
            module,
            path,
            plan.next_call(path),
            clock.current_batch,
            clock.step,
            module.training,
            recompute,
            parent,
            begun_ns=clock.now_ns(),
        )
        self.stack.frames.append(owner)
        return owner

    def _exit(self, plan: ModulePlan, module: nn.Module, outputs: Watched, output: Any) -> None:
        owner = self.stack.close(plan)
        if owner is None:
            return
        if self._clock.recording and plan.recorded:
            records = self.weight_records(module)
            records += owner.inputs
            for key, value in outputs:
                self._add(owner, records, Role.OUTPUT, key, value)
            self._emit(owner, records)
        if plan.is_root and not owner.recompute and not any(frame.plan is plan for frame in self.stack.frames):
            self._observer.end_forward(owner, output)

    def weight_records(self, module: nn.Module) -> list[TensorRecord]:
        """Records of the module's own parameters and buffers."""
        measure = self._meter.measure
        records = []
        for name, parameter in own_parameters(module).items():
            if parameter is not None:
                records.append(record_of(Role.PARAMETER, name, measure(parameter)))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                records.append(record_of(Role.BUFFER, name, measure(buffer)))
        return records

    def _add(self, owner: OpenFrame, records: list[TensorRecord], role: Role, key: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._add_leaf(owner, records, role, key, value)
            return
        for leaf_key, leaf in leaves(value, key, owner.plan.container_note(role)):
            self._add_leaf(owner, records, role, leaf_key, leaf)

    def _add_leaf(self, owner: OpenFrame, records: list[TensorRecord], role: Role, key: str, leaf: Any) -> None:
        records.append(record_of(role, key, self._meter.measure_value(leaf)))
        if owner.backward is not None and isinstance(leaf, torch.Tensor):
            assert self._gradients is not None
            self._gradients.watch(owner.backward, role, key, leaf)

    def _emit(self, owner: OpenFrame, records: list[TensorRecord]) -> None:
        clock = self._clock
        self._stream.push(Event(Moment.EXITED, owner, owner.frame(clock.next_seq(), clock.now_ns(), tuple(records))))
        if self._flush_each_frame:
            self._stream.flush()
        if self._stream.has_findings:
            self._observer.act_on_findings()

    def scan_weights(self, modules: list[tuple[str, nn.Module, ModulePlan]], training: bool) -> None:
        """Look at every parameter and buffer before the batch runs, also those whose module is never called."""
        for path, module, plan in modules:
            if plan.recorded and path == plan.paths[0]:
                records = self.weight_records(module)
                if any(self._may_be_bad(record) for record in records):
                    self._stream.push(self._weights_event(Moment.SCANNED, path, module, plan, training, records))

    def emit_uncalled(self, modules: list[tuple[str, nn.Module, ModulePlan]], root: OpenFrame) -> None:
        """Write the weights of modules that no hook passed in this batch."""
        for path, module, plan in modules:
            if plan.recorded and not plan.calls and path == plan.paths[0]:
                records = self.weight_records(module)
                if records:
                    event = self._weights_event(Moment.EXITED, path, module, plan, root.training, records)
                    self._stream.push(event)

    def _weights_event(
        self,
        moment: Moment,
        path: str,
        module: nn.Module,
        plan: ModulePlan,
        training: bool,
        records: list[TensorRecord],
    ) -> Event:
        clock = self._clock
        owner = OpenFrame(plan, module, path, 0, clock.current_batch, clock.step, training, False, None)
        return Event(moment, owner, owner.frame(clock.next_seq(), clock.now_ns(), tuple(records)))

    @staticmethod
    def _may_be_bad(record: TensorRecord) -> bool:
        """Whether its numbers are bad, or not known yet."""
        return isinstance(record.statistics, Row) or record.statistics.flagged

    def is_open(self, owner: OpenFrame) -> bool:
        """Whether this module call is still running in this thread."""
        return any(frame is owner for frame in self.stack.frames)

    def emit_open_frames(self) -> dict[OpenFrame, Frame]:
        """Write the frames that are still open, with what their modules received, outermost first.

        For a run that ends inside a forward: the innermost of them is where it ended.
        """
        frames = {}
        if torch._C._current_graph_task_id() == -1:
            self.stack.drop_recomputation()
        for owner in [frame for frame in self.stack.frames if frame.batch == self._clock.current_batch]:
            records = self.weight_records(owner.module) + owner.inputs
            frames[owner] = owner.frame(self._clock.next_seq(), self._clock.now_ns(), tuple(records))
            self._stream.push(Event(Moment.EXITED, owner, frames[owner]))
        self.stack.reset()
        return frames


def own_parameters(module: nn.Module) -> dict[str, Any]:
    """A DataParallel replica has its parameters, as plain tensors, under another name."""
    if getattr(module, "_is_replica", False):
        return dict(getattr(module, "_former_parameters", {}))
    return module._parameters
