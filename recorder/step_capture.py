"""The bodies of the optimizer hooks: weights and optimizer state after each step."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from recorder.clock import Clock
from recorder.frames import record_of, standing_frame
from recorder.guard import Guard
from recorder.hooks import HookedModel
from recorder.meter import Meter
from recorder.modules import ModulePlan
from recorder.optimizer_steps import StepWatch, floating_state, parameters_of
from recorder.records import TensorRecord
from recorder.schema import Phase, Role, SilentWarning
from recorder.silent import SilentRules
from recorder.stalled import StallCheck
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
        silent: SilentRules,
        stepping: Callable[[torch.optim.Optimizer], bool],
        stepped: Callable[[torch.optim.Optimizer], None],
        recorded: bool,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._meter = meter
        self._stream = stream
        self._hooked = hooked
        self._silent = silent
        self._stalls = StallCheck()
        self._skipped = False
        self._step_before: dict[int, int] = {}
        self._stepping = stepping
        self._stepped = stepped
        self._recorded = recorded
        self._watch = StepWatch(self._on_stepping, self._on_stepped)

    def detach(self) -> None:
        self._watch.detach()

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it holds a parameter of the model."""
        owners = self._hooked.parameter_owners()
        return any(id(parameter) in owners for parameter in parameters_of(optimizer))

    def _on_stepping(self, optimizer: torch.optim.Optimizer) -> None:
        self._guard.run(self._before_step, optimizer)

    def _on_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._guard.run(self._after_step, optimizer)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._is_ours(optimizer):
            return
        self._step_before[id(optimizer)] = self._clock.step
        self._skipped = self._stepping(optimizer)
        if self._recorded and self._clock.recording:
            self._stalls.before_step(optimizer, self._clock.step)

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._skipped or not self._is_ours(optimizer):
            return
        if self._recorded and self._clock.recording:
            self._push_frames(optimizer)
            self._warn_of_stalls(optimizer)
        # an optimizer that wraps another (SAM, Lookahead) takes one step with it
        self._clock.step = self._step_before.pop(id(optimizer), self._clock.step) + 1
        self._stepped(optimizer)

    def _warn_of_stalls(self, optimizer: torch.optim.Optimizer) -> None:
        owners = self._hooked.parameter_owners()
        for stall in self._stalls.after_step(optimizer):
            path, module = owners.get(id(stall.parameter), (None, None))
            if path is None or module is None:
                continue
            name = next(n for n, p in module._parameters.items() if p is stall.parameter)
            text = (
                f"the step changed none of the {stall.parameter.numel()} elements of {path}.{name} "
                f"({str(stall.parameter.dtype).removeprefix('torch.')}), though its gradient was up to "
                f"{stall.gradient_abs_max:.2g} at learning rate {stall.learning_rate:.2g}: the update is rounded away"
            )
            numbers = {"gradient_abs_max": stall.gradient_abs_max, "learning_rate": stall.learning_rate}
            self._silent.add(
                SilentWarning(
                    "stalled", self._clock.current_batch, Phase.OPTIMIZER.value, path, Role.PARAMETER.value, name,
                    text, numbers,
                )
            )  # fmt: skip

    def _push_frames(self, optimizer: torch.optim.Optimizer) -> None:
        self._meter.forget()  # a fused step writes weights and state, and bumps no version
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for path, module, plan in self._hooked.items():
            if not plan.recorded or path != plan.paths[0]:
                continue
            mine = {n: p for n, p in module._parameters.items() if p is not None and id(p) in held}
            records = self._records(optimizer, mine)
            if records:
                self._push(path, module, plan, records)

    def _records(
        self, optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter]
    ) -> list[TensorRecord]:
        measure = self._meter.measure
        records = [record_of(Role.PARAMETER, name, measure(parameter)) for name, parameter in parameters.items()]
        for name, parameter in parameters.items():
            for state, tensor in floating_state(optimizer, parameter):
                records.append(record_of(Role.OPTIMIZER_STATE, f"{name}.{state}", measure(tensor)))
        return records

    def _push(self, path: str, module: torch.nn.Module, plan: ModulePlan, records: list[TensorRecord]) -> None:
        clock = self._clock
        owner = standing_frame(clock, plan, module, path, training=module.training)
        frame = owner.frame(clock.next_seq(), time.time_ns(), tuple(records))._replace(phase=Phase.OPTIMIZER)
        self._stream.push(Event(Moment.STEPPED, owner, frame))
