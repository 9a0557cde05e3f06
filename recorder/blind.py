"""Modules that ran without their hooks: what is not in the records for lack of a call."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from recorder.hooks import HookedModel
from recorder.modules import ModulePlan
from recorder.schema import Phase, SilentWarning

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Their children are often called one by one, and they themselves not at all."""

_BORROWED = frozenset({"NonDynamicallyQuantizableLinear"})
"""nn.MultiheadAttention uses the weight of its out_proj and never calls it."""

WAY_OUT = "call the module itself instead of its forward, and compile after attaching the recorder"


FIRST_BATCHES = 3
"""A module that is bypassed is so from the start: later batches need not be looked through."""


class BlindSpots:
    """Looks for modules that ran unseen. `add` is given each warning."""

    def __init__(self, hooked: HookedModel, add: Callable[[SilentWarning], None]) -> None:
        self._hooked = hooked
        self._add = add

    def end_forward(self, batch: int) -> None:
        if batch < FIRST_BATCHES:
            for warning in bypassed(self._hooked.items(), batch):
                self._add(warning)

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


def bypassed(modules: list[tuple[str, nn.Module, ModulePlan]], batch: int) -> list[SilentWarning]:
    """A module that has a forward and was not called in this batch, though a module directly inside it was."""
    called_inside = _nearest_owners(modules)
    return [
        _warning(
            path, batch, Phase.FORWARD, f"{_name(path, plan)} ran without its hooks; modules inside it were called"
        )
        for path, module, plan in modules
        if path in called_inside and not plan.calls and not isinstance(module, _CONTAINERS) and _has_forward(module)
    ]


def _nearest_owners(modules: list[tuple[str, nn.Module, ModulePlan]]) -> set[str]:
    """The modules that are no mere containers and that directly hold a module which was called."""
    containers = {path for path, module, _ in modules if isinstance(module, _CONTAINERS) or not _has_forward(module)}
    owners = set()
    for path, _, plan in modules:
        if path in plan.calls:
            owner = path.rpartition(".")[0]
            while owner and owner in containers:
                owner = owner.rpartition(".")[0]
            owners.add(owner)
    return owners


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
