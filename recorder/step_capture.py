"""The bodies of the optimizer hooks: weights and optimizer state after each step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from recorder.clock import Clock
from recorder.frames import OpenFrame, record_of
from recorder.guard import Guard
from recorder.hooks import HookedModel
from recorder.meter import Meter
from recorder.modules import ModulePlan
from recorder.optimizer_steps import StepWatch, floating_state, parameters_of
from recorder.records import TensorRecord
from recorder.schema import Phase, Role
from recorder.stream import Event, FrameStream, Moment


class StepCapture:
    """Counts the steps of the model's optimizers and, where the phase is recorded, turns them into frames."""

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        meter: Meter,
        stream: FrameStream,
        hooked: HookedModel,
        stepping: Callable[[], None],
        stepped: Callable[[torch.optim.Optimizer], None],
        recorded: bool,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._meter = meter
        self._stream = stream
        self._hooked = hooked
        self._stepping = stepping
        self._stepped = stepped
        self._recorded = recorded
        self._watch = StepWatch(self._is_ours, self._on_stepping, self._on_stepped)

    def detach(self) -> None:
        self._watch.detach()

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        owners = self._hooked.parameter_owners()
        return any(id(parameter) in owners for parameter in parameters_of(optimizer))

    def _on_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        self._guard.run(self._stepping)

    def _on_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._guard.run(self._after_step, optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._recorded and self._clock.recording:
            self._push_frames(optimizer)
        self._clock.step += 1
        self._stepped(optimizer)

    def _push_frames(self, optimizer: torch.optim.Optimizer) -> None:
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for path, module, plan in self._hooked.items():
            if not plan.recorded or path != plan.paths[0]:
                continue
            mine = {n: p for n, p in module._parameters.items() if p is not None and id(p) in held}
            records = self._records(optimizer, mine)
            if records:
                self._push(path, module, plan, records)

    def _records(self, optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter]) -> list[TensorRecord]:
        measure = self._meter.measure
        records = [record_of(Role.PARAMETER, name, measure(parameter)) for name, parameter in parameters.items()]
        for name, parameter in parameters.items():
            for state, tensor in floating_state(optimizer, parameter):
                records.append(record_of(Role.OPTIMIZER_STATE, f"{name}.{state}", measure(tensor)))
        return records

    def _push(self, path: str, module: torch.nn.Module, plan: ModulePlan, records: list[TensorRecord]) -> None:
        clock = self._clock
        owner = OpenFrame(plan, module, path, 0, clock.current_batch, clock.step, module.training, False, None)
        frame = owner.frame(clock.next_seq(), clock.now_ns(), tuple(records))._replace(phase=Phase.OPTIMIZER)
        self._stream.push(Event(Moment.STEPPED, owner, frame))
