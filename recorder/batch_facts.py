"""What ran beside the frames: loss, learning rate, loss scale and gradient norm of each batch."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import replace
from typing import Any

import torch

from recorder.records import Frame
from recorder.schema import BatchInfo, Phase, Role
from recorder.walk import leaves

KEPT_BATCHES = 4096
"""Older batches fall out, as records do."""


class BatchFacts:
    """The last batches' facts; `begun` is the perf_counter second at which the recorder began."""

    def __init__(self, optimizer: Any) -> None:
        self.begun = time.perf_counter()
        self._optimizers = (
            () if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
        )
        self._kept: deque[BatchInfo] = deque(maxlen=KEPT_BATCHES)
        self._current: BatchInfo | None = None
        self._squares: dict[tuple[str, str], float] = {}

    @property
    def batches(self) -> tuple[BatchInfo, ...]:
        current = () if self._current is None else (self._current,)
        return (*self._kept, *current)

    def begin_batch(self, batch: int, step: int, training: bool, loss_scale: float | None) -> None:
        self._current = BatchInfo(batch, step, training, None, self._learning_rate(), loss_scale)

    def end_forward(self, output: Any) -> None:
        self.note(loss=loss_of(output))

    def note(self, **facts: Any) -> None:
        """Add facts to the current batch."""
        if self._current is not None:
            self._current = replace(self._current, **facts)

    def see(self, frame: Frame) -> None:
        """Take the gradients of parameters into the norm; a later one of a parameter replaces an earlier."""
        if frame.phase is not Phase.BACKWARD:
            return
        for record in frame.records:
            rms, numel = record.statistics.rms, record.layout.numel
            if record.role is Role.GRADIENT and rms is not None and numel is not None:
                self._squares[frame.module, record.key] = rms * rms * numel

    def end_batch(self) -> None:
        if self._squares:
            self.note(grad_norm=math.sqrt(sum(self._squares.values())))
            self._squares.clear()
        if self._current is not None:
            self._kept.append(self._current)
            self._current = None

    def _learning_rate(self) -> float | None:
        return learning_rate_of(self._optimizers[0]) if self._optimizers else None


def learning_rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    """The rate of the first parameter group; a tensor on an accelerator is not read."""
    rate = optimizer.param_groups[0].get("lr")
    if isinstance(rate, torch.Tensor):
        return float(rate.item()) if rate.device.type == "cpu" else None
    return float(rate) if isinstance(rate, (int, float)) else None


def requires_grad(output: Any) -> bool:
    """Whether a backward can follow."""
    return any(isinstance(value, torch.Tensor) and value.requires_grad for _, value in leaves(output))


def loss_of(output: Any) -> float | None:
    """The loss, where the root returns one: a field `loss`, or a first output that is one number.

    An accelerator's is not read: that would be a host read the run does not need.
    """
    found = leaves(output)
    named = [value for key, value in found if key.rpartition(".")[2] == "loss"]
    value = named[0] if named else found[0][1] if found else None
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.device.type != "cpu":
        return None
    if not value.is_floating_point() or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return None
    return float(value.item())
