"""One training run of a tiny model, in any precision: what healthy, sick and observed runs have in common."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from benchmarks.accuracy.batches import Batch
from benchmarks.accuracy.models import Architecture, loss_of

LEARNING_RATE = 1e-3
FIRST_SCALE = 2.0**16


class Precision(str, Enum):
    """How the forward is computed."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    def autocast(self) -> AbstractContextManager[object]:
        if self is Precision.FP32:
            return nullcontext()
        return torch.autocast("cpu", torch.float16 if self is Precision.FP16 else torch.bfloat16)


@dataclass
class Training:
    """A model under training. `scaler` guards the steps of fp16 runs, and looks for its scale from high above."""

    architecture: Architecture
    precision: Precision
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    seed: int

    @classmethod
    def of(cls, architecture: Architecture, precision: Precision, seed: int) -> Training:
        model = architecture.build(seed)
        scaler = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE) if precision is Precision.FP16 else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        return cls(architecture, precision, model, optimizer, scaler, seed)

    def batch(self, number: int) -> Batch:
        return self.architecture.batch(self.seed * 1000 + number * 10)

    def forward(self, number: int) -> Tensor:
        with self.precision.autocast():
            return loss_of(self.model(**self.batch(number)))

    def step(self, number: int, change_loss: Callable[[Tensor], Tensor] | None = None) -> float:
        """Forward, backward and optimizer step of one batch; its loss."""
        self.optimizer.zero_grad()
        loss = self.forward(number)
        if change_loss is not None:
            loss = change_loss(loss)
        self.scaled(loss).backward()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return float(loss.detach())

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward is called on."""
        return loss if self.scaler is None else self.scaler.scale(loss)


def seed_everything(seed: int) -> None:
    """All generators that a model may draw from: dropout, layer drop and masking of spans use different ones."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def quietly() -> Iterator[None]:
    """One thread, and no warnings of other people's. One that says the recorder gave up is an error."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="Overflight stopped recording")
        yield
