"""The optimizer phase: parameters and floating optimizer state after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_NOT_STATE = frozenset({"step"})
"""Bookkeeping that optimizers keep as a tensor beside the state."""


class StepWatch:
    """Told of every step of every optimizer, handed over or not."""

    def __init__(
        self,
        before: Callable[[torch.optim.Optimizer], None],
        after: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        self._before = before
        self._after = after
        self._handles = [
            register_optimizer_step_pre_hook(self._on_before),
            register_optimizer_step_post_hook(self._on_after),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _on_before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._before(optimizer)

    def _on_after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._after(optimizer)


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def floating_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of what the optimizer keeps for a parameter, such as exp_avg."""
    for name, value in optimizer.state.get(parameter, {}).items():
        if not isinstance(value, torch.Tensor) or name in _NOT_STATE:
            continue
        if value.is_floating_point() or value.is_complex():
            yield name, value
