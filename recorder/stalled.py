"""Steps that change nothing: an update smaller than half the spacing of the weights is rounded away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from recorder.optimizer_steps import parameters_of

FIRST_STEPS = 3
THEN_EVERY = 100
"""A check reads every parameter twice. The first steps show a stall that is there from the start, others a late one."""

ROUNDING_NOISE = 1e-6
"""A gradient this small beside the largest is zero but for rounding: that of a bias before a BatchNorm, say."""

_CPU_PIECE, _DEVICE_PIECE = 1 << 17, 1 << 24
"""Elements at a time: what stays in a CPU's cache, and few launches on a device."""

_MULTIPLIER = 0x1E3779B9
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
    """Of the bits of each parameter that has a gradient; one host read a device."""
    return _read_each(optimizer, _checksum)


def _checksum(parameter: torch.Tensor) -> torch.Tensor:
    """A number that changes with any bit. A plain sum does not when elements change by the same up and down."""
    bits = _bits(parameter).reshape(-1)
    wide = torch.int64 if bits.dtype is torch.int64 else torch.int32
    at_a_time = min(bits.numel(), _CPU_PIECE if bits.device.type == "cpu" else _DEVICE_PIECE)
    positions = torch.arange(at_a_time, dtype=wide, device=bits.device)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(at_a_time):
        mixed = piece.to(wide, copy=True).mul_(_MULTIPLIER).add_(positions[: piece.numel()])
        total = total * 31 + mixed.mul_(mixed).sum(dtype=torch.int64)
    return total


def _gradient_sizes(optimizer: torch.optim.Optimizer) -> dict[int, float]:
    """abs_max of the gradient of each parameter; one host read a device."""
    return _read_each(optimizer, lambda parameter: _abs_max(parameter.grad))


def _read_each(
    optimizer: torch.optim.Optimizer, reduce: Callable[[torch.nn.Parameter], torch.Tensor]
) -> dict[int, Any]:
    """One number for each plain parameter that has a gradient, by identity of the parameter."""
    by_device: dict[torch.device, list[torch.nn.Parameter]] = {}
    for parameter in parameters_of(optimizer):
        if type(parameter) is torch.nn.Parameter and parameter.grad is not None and parameter.numel():
            by_device.setdefault(parameter.device, []).append(parameter)
    numbers: dict[int, Any] = {}
    for parameters in by_device.values():
        read = torch.stack([reduce(parameter) for parameter in parameters]).tolist()
        numbers.update(zip(map(id, parameters), read, strict=True))
    return numbers


def _abs_max(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    values = gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient
    return values.abs().amax().float() if values.numel() else values.new_zeros((), dtype=torch.float32)


def _bits(parameter: torch.Tensor) -> torch.Tensor:
    values = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
    return values.contiguous().view(_INTEGER_OF_SIZE[values.element_size()])


def _stalls(optimizer: torch.optim.Optimizer, unchanged: set[int]) -> list[Stall]:
    if not unchanged:
        return []
    gradients = _gradient_sizes(optimizer)
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
