"""Attaching a recorder or the drop-in by the same words, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from recorder import DebugUnderflowOverflow, Recorder, read
from recorder.dump import read_info
from recorder.schema import Trigger

Watching = Recorder | DebugUnderflowOverflow
BOTH = ("Recorder", "DebugUnderflowOverflow")


class Watch:
    """Attaches one of BOTH to models, and closes what it attached."""

    def __init__(self, kind: str, log_dir: Path) -> None:
        self.kind = kind
        self.log_dir = log_dir
        self.attached: list[Watching] = []

    def __call__(
        self, model: nn.Module, *, trace_batches: Collection[int] = (), abort_after_batch: int | None = None
    ) -> Watching:
        watching: Watching
        if self.kind == "Recorder":
            watching = Recorder(model, self.log_dir, trace_batches=trace_batches, abort_after_batch=abort_after_batch)
        else:
            watching = DebugUnderflowOverflow(model, 21, list(trace_batches), abort_after_batch, log_dir=self.log_dir)
        self.attached.append(watching)
        return watching

    @property
    def dumps(self) -> list[Path]:
        return self.attached[-1].dumps

    def rows(self) -> pd.DataFrame:
        """Every record of the last one that was attached."""
        return read(self.attached[-1].run_dir)

    def close(self) -> None:
        for watching in self.attached:
            watching.close()


def trigger_of(dump: Path) -> Trigger:
    """Why a dump exists."""
    trigger = read_info(dump).trigger
    assert trigger is not None
    return trigger


def forward(rows: pd.DataFrame, module: str, role: str, key: str = "") -> pd.DataFrame:
    """The forward records of one tensor of one module, in order."""
    return rows[
        (rows.phase == "forward") & (rows.module == module) & (rows.role == role) & (rows.key == key)
    ].reset_index(drop=True)


def hooks_of(model: nn.Module) -> Iterator[object]:
    """Every hook that is on a module, a parameter or a buffer."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            yield from hooks.values()
    for tensor in (*model.parameters(), *model.buffers()):
        yield from (tensor._backward_hooks or {}).values()
        yield from (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values()


class Bomb(nn.Module):
    """Hands its input on, with one element replaced by `value` in the calls whose numbers are in `calls`."""

    def __init__(self, calls: Collection[int] = (0,), value: float = float("inf")) -> None:
        super().__init__()
        self.calls = frozenset(calls)
        self.value = value
        self.called = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        called, self.called = self.called, self.called + 1
        if called not in self.calls:
            return x + 0.0
        bad = x.clone()
        bad.view(-1)[0] = self.value
        return bad
