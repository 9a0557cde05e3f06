"""Modules that ran without their hooks: what is not in the records for lack of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from torch import nn

from recorder.frames import OpenFrame
from recorder.hooks import HookedModel
from recorder.modules import ModulePlan
from recorder.schema import Phase, SilentWarning

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Their children are often called one by one, and they themselves not at all."""

_BORROWED = frozenset({"NonDynamicallyQuantizableLinear", "Embedding"})
"""Classes whose weight is often used as such: nn.MultiheadAttention never calls its out_proj, and a table of
relative positions is often read as a whole."""

WAY_OUT = "call the module itself instead of its forward, and compile after attaching the recorder"


class BlindSpots:
    """Looks for modules that ran unseen. `add` is given each warning."""

    def __init__(self, hooked: HookedModel, add: Callable[[SilentWarning], None]) -> None:
        self._hooked = hooked
        self._add = add

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
        """A parameter of a module that was not called got a gradient. A tied one may have been used elsewhere."""
        parameter = module._parameters.get(name)
        used_elsewhere = any(
            other_plan.calls and any(held is parameter for held in other._parameters.values())
            for _, other, other_plan in self._hooked.items()
        )
        warning = None if used_elsewhere else used_uncalled(path, module, plan, batch)
        if warning is not None:
            self._add(warning)

    def stepped(self, batch: int) -> None:
        if batch < 0:
            self._add(never_called(0))


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


def used_uncalled(path: str, module: nn.Module, plan: ModulePlan, batch: int) -> SilentWarning | None:
    """A module whose parameter, which no module that was called holds, got a gradient in this batch."""
    if plan.calls or plan.module_class in _BORROWED or not _has_forward(module):
        return None
    text = f"{_name(path, plan)} was not called in batch {batch}, and its weights were used: they have a gradient"
    return _warning(path, batch, Phase.BACKWARD, text)


def never_called(batch: int) -> SilentWarning:
    """An optimizer stepped, and the model had not been called once."""
    return _warning("", batch, Phase.OPTIMIZER, "an optimizer stepped, and no call of the model was seen before")


def _has_forward(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _name(path: str, plan: ModulePlan) -> str:
    return f"{path or 'the root'} ({plan.module_class})"


def _warning(path: str, batch: int, phase: Phase, what: str) -> SilentWarning:
    return SilentWarning("blind", batch, phase.value, path, "", "", f"{what}: {WAY_OUT}")
