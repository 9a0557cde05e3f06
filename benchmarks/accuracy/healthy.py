"""A hundred and more healthy runs: each architecture trained a few steps in fp32, bf16 and fp16 with a scaler.

usage: python -m benchmarks.accuracy.healthy [--only NAME] [--steps 4] [--seed 0]

A tool that accuses healthy runs gets switched off: no run here may trip, and each warning has to have a reason.
Exit code 1 when one tripped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.accuracy.models import ARCHITECTURES, Architecture
from benchmarks.accuracy.training import Precision, Training, quietly, seed_everything
from recorder import Recorder
from recorder.run_directory import RUN_INFO_FILE
from recorder.schema import RunInfo, Trigger

STEPS = 4

Runs = dict[tuple[str, Precision], "Health"]


@dataclass(frozen=True)
class Health:
    """What the recorder said of one healthy run; `losses` of the training batches and of one evaluated after them."""

    triggers: tuple[Trigger, ...]
    info: RunInfo
    losses: tuple[float, ...]

    @property
    def skipped_steps(self) -> int:
        return sum(bool(batch.skipped) for batch in self.info.batches)


def watch(architecture: Architecture, precision: Precision, directory: Path, steps: int, seed: int) -> Health:
    """Train `steps` batches and evaluate one, with the recorder attached. The scaler is left to be found."""
    training = Training.of(architecture, precision, seed)
    triggers: list[Trigger] = []
    seed_everything(seed)
    with Recorder(
        training.model, directory, optimizer=training.optimizer, on_overflow=triggers.append
    ) as recorder:  # fmt: skip
        losses = [training.step(number) for number in range(steps)]
        training.model.eval()
        with torch.no_grad():
            losses.append(float(training.forward(steps)))
    info = RunInfo.from_json((recorder.run_dir / RUN_INFO_FILE).read_text())
    return Health(tuple(triggers), info, tuple(losses))


def cell(health: Health) -> str:
    """One run in a few words: "quiet", "2 underflow (1 skipped)"."""
    kinds = Counter(warning.kind for warning in health.info.warnings)
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    skipped = f" ({health.skipped_steps} skipped)" if health.skipped_steps else ""
    return (f"{len(health.triggers)} TRIGGERS " if health.triggers else "") + (said or "quiet") + skipped


def _run(only: str, steps: int, seed: int) -> Runs:
    runs: Runs = {}
    print(f"{'architecture':18} {'family':20} " + " ".join(f"{p.value:24}" for p in Precision))
    for architecture in [a for a in ARCHITECTURES if only in a.name]:
        for precision in Precision:
            with tempfile.TemporaryDirectory() as directory:
                runs[architecture.name, precision] = watch(architecture, precision, Path(directory), steps, seed)
        cells = [f"{cell(runs[architecture.name, precision]):24}" for precision in Precision]
        print(f"{architecture.name:18} {architecture.family:20} " + " ".join(cells), flush=True)
    return runs


def _print_triggers(runs: Runs) -> int:
    tripped = {run: health for run, health in runs.items() if health.triggers}
    print(f"\n{len(runs)} healthy runs, {len(tripped)} tripped")
    for (name, precision), health in tripped.items():
        print(f"  {name} {precision.value}: {health.triggers[0]}")
    return len(tripped)


def _print_warnings(runs: Runs) -> None:
    warnings = [(run, warning) for run, health in runs.items() for warning in health.info.warnings]
    for kind, count in Counter(warning.kind for _, warning in warnings).most_common():
        print(f"\n{count} warnings of kind {kind}:")
        for (name, precision), warning in warnings:
            if warning.kind == kind:
                print(f"  {name} {precision.value} batch {warning.batch} {warning.phase}: {warning.text}")
    rules: Counter[str] = Counter()
    for health in runs.values():
        for one in health.info.suppressed:
            rules[one.rule] += one.count
    print("\ntaken as legitimate: " + (", ".join(f"{n} {rule}" for rule, n in rules.most_common()) or "nothing"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of an architecture's name")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with quietly():
        runs = _run(arguments.only, arguments.steps, arguments.seed)
    tripped = _print_triggers(runs)
    _print_warnings(runs)
    return int(tripped > 0)


if __name__ == "__main__":
    sys.exit(main())
