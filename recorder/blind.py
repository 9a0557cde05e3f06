"""Modules that ran without their hooks: what is not in the records for lack of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from recorder.frames import OpenFrame
from recorder.hooks import HookedModel
from recorder.modules import ModulePlan
from recorder.schema import Phase, SilentWarning

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Their children are often called one by one, and they themselves not at all."""

WAY_OUT = "call the module itself instead of its forward, and compile after attaching the recorder"


class BlindSpots:
    """Looks for modules that ran unseen. `add` is given each warning."""

    def __init__(self, hooked: HookedModel, add: Callable[[SilentWarning], None]) -> None:
        self._hooked = hooked
        self._add = add
        self._asked: dict[str, ForwardProbe] = {}
        self._probes: dict[str, ForwardProbe] = {}

    def begin_batch(self) -> None:
        """Ask the modules whose weights were used without a call, for the length of one forward."""
        self.detach()
        for path, probe in self._asked.items():
            if not probe.is_answered:
                self._probes[path] = probe
                probe.install()

    def end_forward(self, batch: int) -> None:
        self.detach()
        plans = {path: plan for path, _, plan in self._hooked.items()}
        for path, probe in self._probes.items():
            plan = plans.get(path)
            if probe.ran and plan is not None and not plan.calls:
                self._add(_warning(path, batch, Phase.FORWARD, f"{_name(path, plan)} ran without its hooks"))
        self._probes.clear()

    def detach(self) -> None:
        """Leave every module's forward as it was."""
        for probe in self._probes.values():
            probe.remove()

    def entered(self, owner: OpenFrame) -> None:
        """A module was called: the modules around it should have been called before."""
        parent = owner.parent
        skipped = _between(parent.path if parent is not None else None, owner.path)
        if not skipped:
            return
        called = _around(owner)
        for path, module, plan in self._hooked.items():
            if path not in skipped or any(module is one for one in called) or isinstance(module, _CONTAINERS):
                continue
            if runs_forward(module):
                text = f"{_name(path, plan)} ran without its hooks; modules inside it were called"
                self._add(_warning(path, owner.batch, Phase.FORWARD, text))

    def got_gradient(self, path: str, name: str, module: nn.Module, plan: ModulePlan, batch: int) -> None:
        """A parameter of a module that was not called got a gradient.

        A tied one may have been used elsewhere, and a parent that was called may use the weights of a module
        that has none inside: whether that one's forward runs is asked in the next batch.
        """
        if plan.calls or not _has_forward(module) or self._is_used_elsewhere(module._parameters.get(name)):
            return
        unseen = self._outermost_uncalled(path)
        if unseen != path or any(_has_forward(child) for child in module.children()):
            plan_of = {path: plan for path, _, plan in self._hooked.items()}
            text = f"{_name(unseen, plan_of[unseen])} was not called in batch {batch}, and weights inside it were used"
            self._add(_warning(unseen, batch, Phase.BACKWARD, text))
        elif path not in self._asked and isinstance(type(module).forward, FunctionType):
            self._asked[path] = ForwardProbe(module)

    def _is_used_elsewhere(self, parameter: nn.Parameter | None) -> bool:
        return any(
            plan.calls and any(held is parameter for held in module._parameters.values())
            for _, module, plan in self._hooked.items()
        )

    def _outermost_uncalled(self, path: str) -> str:
        """The outermost of the modules around this one, up to the first that was called; itself where that is next."""
        around = {path: (module, plan) for path, module, plan in self._hooked.items()}
        outermost = path
        while path:
            path = path.rpartition(".")[0]
            module, plan = around.get(path, (None, None))
            if plan is not None and plan.calls:
                break
            if module is not None and _has_forward(module) and not isinstance(module, _CONTAINERS):
                outermost = path
        return outermost

    def stepped(self, batch: int) -> None:
        if batch < 0:
            self._add(never_called(0))


class ForwardProbe:
    """Stands in for a module's forward during one forward of the model, and notes that it ran. Asked once."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._forward: Callable[..., Any] = module.forward
        self._was_own = "forward" in module.__dict__
        self._is_installed = False
        self.is_answered = False
        self.ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.ran = True
        return self._forward(*args, **kwargs)

    def install(self) -> None:
        self._forward, self._was_own = self._module.forward, "forward" in self._module.__dict__
        self._module.__dict__["forward"] = self
        self._is_installed = self.is_answered = True

    def remove(self) -> None:
        if not self._is_installed:
            return
        self._is_installed = False
        if self._was_own:
            self._module.__dict__["forward"] = self._forward
        else:
            del self._module.__dict__["forward"]


def _between(running: str | None, path: str) -> set[str]:
    """The modules inside the running one (None: nothing runs) that hold this path."""
    around = set()
    while path and path != running:
        path = path.rpartition(".")[0]
        if path != running:
            around.add(path)
    return around


def _around(owner: OpenFrame) -> list[nn.Module]:
    """The modules whose calls this one is part of."""
    modules = []
    parent = owner.parent
    while parent is not None:
        modules.append(parent.module)
        parent = parent.parent
    return modules


def runs_forward(module: nn.Module) -> bool:
    """Whether this thread is inside the module's forward. One whose children its parent calls by itself is not run."""
    forward = getattr(module.forward, "__func__", module.forward)
    code = getattr(forward, "__code__", None)
    running: FrameType | None = sys._getframe()
    while running is not None:
        if running.f_code is code and running.f_locals.get("self", module) is module:
            return True
        running = running.f_back
    return False


def never_called(batch: int) -> SilentWarning:
    """An optimizer stepped, and the model had not been called once."""
    return _warning("", batch, Phase.OPTIMIZER, "an optimizer stepped, and no call of the model was seen before")


def _has_forward(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _name(path: str, plan: ModulePlan) -> str:
    return f"{path or 'the root'} ({plan.module_class})"


def _warning(path: str, batch: int, phase: Phase, what: str) -> SilentWarning:
    return SilentWarning("blind", batch, phase.value, path, "", "", f"{what}: {WAY_OUT}")
