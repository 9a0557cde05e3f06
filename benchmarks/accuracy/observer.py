"""Whether watching changes anything: losses, gradients and final weights, bit for bit, with and without the recorder.

usage: python -m benchmarks.accuracy.observer [--steps 50] [--all]

Dropout is on, in every precision. Exit code 1 when one bit differs.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.accuracy.models import ARCHITECTURES, Architecture, architecture
from benchmarks.accuracy.training import Precision, Training, quietly, seed_everything
from recorder import Recorder

STEPS = 50
SEED = 7
WATCHED = ("BERT", "DeBERTa-v2", "GPT-2", "Llama", "MT5", "BART", "Qwen2-MoE", "Mamba", "BEiT", "Wav2Vec2")


@dataclass(frozen=True)
class Outcome:
    """What a run did: digests of the bits of its losses, of every step's gradients and of its final weights."""

    losses: str
    gradients: str
    weights: str


def outcome(architecture: Architecture, precision: Precision, steps: int, directory: Path | None) -> Outcome:
    """Train; with the recorder where there is a directory for it. Every drawn number counts, dropout's too."""
    training = Training.of(architecture, precision, SEED)
    seed_everything(SEED)
    losses, gradients = [], hashlib.sha256()
    with _watching(training, directory):
        for number in range(steps):
            losses.append(training.step(number))
            for parameter in training.model.parameters():
                if parameter.grad is not None:
                    gradients.update(_bits(parameter.grad))
    losses.append(float(torch.rand(())))  # nobody drew a number more or less
    return Outcome(
        _digest([torch.tensor(losses)]), gradients.hexdigest(), _digest(training.model.state_dict().values())
    )


def _watching(training: Training, directory: Path | None) -> AbstractContextManager[object]:
    if directory is None:
        return nullcontext()
    return Recorder(
        training.model, directory, optimizer=training.optimizer, scaler=training.scaler, on_overflow="warn",
        trace_batches=range(0, STEPS, 10), stats="full",
    )  # fmt: skip


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(_bits(tensor))
    return digest.hexdigest()


def _bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _compare(chosen: list[Architecture], steps: int) -> int:
    differing = 0
    for one in chosen:
        for precision in Precision:
            alone = outcome(one, precision, steps, None)
            with tempfile.TemporaryDirectory() as directory:
                watched = outcome(one, precision, steps, Path(directory))
            same = {name: getattr(alone, name) == getattr(watched, name) for name in alone.__dict__}
            differing += not all(same.values())
            cells = "  ".join(f"{name} {'same' if is_same else 'DIFFER'}" for name, is_same in same.items())
            print(f"{one.name:14} {precision.value} {steps} steps: {cells}", flush=True)
    print(f"\n{len(chosen) * len(Precision)} pairs of runs, {differing} differ")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--all", action="store_true", help="every architecture, not just ten")
    arguments = parser.parse_args()
    chosen = list(ARCHITECTURES) if arguments.all else [architecture(name) for name in WATCHED]
    with quietly():
        return int(_compare(chosen, arguments.steps) > 0)


if __name__ == "__main__":
    sys.exit(main())
