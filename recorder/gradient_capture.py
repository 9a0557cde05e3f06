"""The bodies of the gradient hooks: gradients on their way to the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from recorder.backward import Arrival, BackwardAssembly
from recorder.clock import Clock
from recorder.frames import OpenFrame, record_of, standing_frame
from recorder.gradients import BackwardFrame, GradientHook, GradientWatch
from recorder.guard import Guard
from recorder.meter import Meter
from recorder.modules import ModulePlan
from recorder.schema import Role
from recorder.stream import Event, FrameStream, Moment

_BACKWARD_ROLE = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT}


class GradientCapture:
    """Turns gradients into events, in the order in which autograd produces them."""

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        meter: Meter,
        stream: FrameStream,
        assembly: BackwardAssembly,
        act: Callable[[], None],
        uncalled: Callable[[str, str, nn.Module, ModulePlan, int], None],
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._meter = meter
        self._stream = stream
        self._assembly = assembly
        self._act = act
        self._uncalled = uncalled
        self._plans: dict[str, ModulePlan] = {}
        self._outer_backward: int | None = None
        self._watch = GradientWatch(self._on_arrived, self._on_accumulated)

    def begin_batch(self) -> None:
        self._watch.begin_batch()
        self._outer_backward = None
        self.finish()

    def finish(self) -> None:
        """Write the backward frames that wait for gradients which will not come."""
        self._stream.write(self._assembly.finish())

    def watch_parameters(self, modules: list[tuple[str, nn.Module, ModulePlan]], *, afresh: bool = False) -> None:
        """Await the gradients of all parameters. afresh: the modules have changed since the last time."""
        if afresh or self._watch.num_parameters > sum(len(module._parameters) for _, module, _ in modules):
            self._watch.forget_parameters()
        for path, module, plan in modules:
            if plan.recorded and path == plan.paths[0]:
                self._plans[path] = plan
                self._watch.watch_parameters(path, module)

    def end_forward(self, modules: list[tuple[str, nn.Module, ModulePlan]]) -> None:
        """Await the gradients of parameters that only came to be in this forward."""
        if self._watch.has_lazy_parameters:
            self._watch.has_lazy_parameters = False
            self.watch_parameters(modules)

    def detach(self) -> None:
        self._watch.detach()

    def open(self, owner: OpenFrame) -> BackwardFrame | None:
        """The backward frame of a module call; None where hooks would change what a transform sees."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        return BackwardFrame(owner)

    def watch(self, backward: BackwardFrame, role: Role, key: str, tensor: torch.Tensor) -> None:
        self._watch.watch(backward, _BACKWARD_ROLE[role], key, tensor)

    def _on_arrived(self, hook: GradientHook, gradient: torch.Tensor) -> None:
        if isinstance(gradient, torch.Tensor):
            self._guard.run(self._arrived, hook, gradient)

    def _arrived(self, hook: GradientHook, gradient: torch.Tensor) -> None:
        self._finish_after_backward()
        record = record_of(Role.GRAD_OUTPUT, "", self._meter.measure(gradient))
        owner = hook.targets[0].backward.owner
        self._push(Event(Moment.GRADIENT, owner, arrival=Arrival(tuple(hook.targets), record)))

    def _on_accumulated(self, path: str, name: str, module: nn.Module, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._guard.run(self._accumulated, path, name, module, parameter.grad)

    def _accumulated(self, path: str, name: str, module: nn.Module, gradient: torch.Tensor) -> None:
        if not self._clock.recording:
            return
        # not remembered by a weak reference: torch refuses to swap (in `module.to`) a .grad that has one
        record = record_of(Role.GRADIENT, name, self._meter.measure(gradient, remember=False))
        plan, clock = self._plans[path], self._clock
        if not plan.calls and clock.batch >= 0:
            self._uncalled(path, name, module, plan, clock.batch)
        call = max(plan.calls.get(path, 0) - 1, 0)
        owner = standing_frame(clock, plan, module, path, training=module.training, call=call)
        self._push(Event(Moment.GRADIENT, owner, arrival=Arrival((), record, owner)))

    def _push(self, event: Event) -> None:
        self._stream.push(event)
        if self._stream.has_findings:
            self._act()

    def _finish_after_backward(self) -> None:
        """Ask autograd, once a backward, to be told of its end. A reentrant checkpoint's inner one is not it."""
        task: int = torch._C._current_graph_task_id()
        if self._outer_backward is None and task != -1:
            self._outer_backward = task
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._on_backward_end)

    def _on_backward_end(self) -> None:
        self._guard.run(self._backward_ended)

    def _backward_ended(self) -> None:
        self._outer_backward = None
        if not self._stream.is_waiting:
            self.finish()
