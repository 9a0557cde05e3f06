"""Steps that change nothing: an update smaller than half the spacing of the weights is rounded away."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recorder.optimizer_steps import parameters_of
from recorder.stats import measure

FIRST_STEPS = 3
THEN_EVERY = 100
"""A check reads every parameter twice. The first steps
show a stall that is there from the start, the others a late one."""

ROUNDING_NOISE = 1e-6
"""A gradient this small beside the largest is zero but for rounding: that of a bias before a BatchNorm, say."""

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Stall:
    """A parameter that a step left bit for bit as it was, though its gradient was not zero."""

    parameter: torch.Tensor
    gradient_abs_max: float
    learning_rate: float


class StallCheck:
    """Compares parameters before and after a step, on some steps."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}

    def before_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        self._before.clear()
        if step < FIRST_STEPS or step % THEN_EVERY == 0:
            self._before = _checksums(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> list[Stall]:
        if not self._before:
            return []
        after = _checksums(optimizer)
        unchanged = {key for key, value in self._before.items() if after.get(key) == value}
        self._before.clear()
        return _stalls(optimizer, unchanged)


def _checksums(optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Sum of the bit patterns of each parameter that has a gradient; one host read a device."""
    held = [p for p in parameters_of(optimizer) if p.grad is not None and type(p) is torch.nn.Parameter and p.numel()]
    by_device: dict[torch.device, list[torch.nn.Parameter]] = {}
    for parameter in held:
        by_device.setdefault(parameter.device, []).append(parameter)
    sums: dict[int, int] = {}
    for parameters in by_device.values():
        read = torch.stack([_bits(p).sum(dtype=torch.int64) for p in parameters]).tolist()
        sums.update(zip(map(id, parameters), read, strict=True))
    return sums


def _bits(parameter: torch.Tensor) -> torch.Tensor:
    values = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    return values.contiguous().view(_INTEGER_OF_SIZE[values.element_size()])


def _stalls(optimizer: torch.optim.Optimizer, unchanged: set[int]) -> list[Stall]:
    if not unchanged:
        return []
    gradients = {id(p): measure(p.grad).abs_max or 0.0 for p in parameters_of(optimizer) if p.grad is not None}
    noise = max(gradients.values(), default=0.0) * ROUNDING_NOISE
    found = []
    for group in optimizer.param_groups:
        rate = float(group.get("lr") or 0.0)
        for parameter in group["params"]:
            if id(parameter) not in unchanged or parameter.grad is None or not rate > 0.0:
                continue
            largest = gradients[id(parameter)]
            if largest > noise:
                found.append(Stall(parameter, largest, rate))
    return found
