"""What recording costs: a training step bare, under the recorder, under the seed class and under anomaly detection.

    python benchmarks/overhead.py [--quick] [--workloads ...] [--variants ...] [--json FILE]

Every round measures every variant once, in one process and in changing order, so that a machine that grows slower
slows all of them. A ratio compares a variant with the bare step of the same round; the table has the median of the
rounds and their quartiles. Memory is the peak of a process of its own, over that of a bare one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs as a script

import torch

from benchmarks.workloads import WORKLOADS, Workload, make_workload
from recorder import Recorder

BARE, SEED, SAMPLED = "bare", "seed", "every 100th"
SAMPLE_EVERY = 100
Clock = Callable[[], float]
Variant = Callable[[Workload, Path], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Result:
    """One variant on one workload. Times in ms a step; ratios to bare; `of_seed` is overhead over the seed's."""

    workload: str
    variant: str
    step_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    of_seed: float | None
    memory_mib: float | None


def _bare(workload: Workload, folder: Path) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


@contextlib.contextmanager
def _seed(workload: Workload, folder: Path) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(workload.model)
    try:
        yield
    finally:  # the class itself can't take its hooks off
        for module in workload.model.modules():
            module._forward_hooks.clear()


@contextlib.contextmanager
def _attached_then_closed(workload: Workload, folder: Path) -> Iterator[None]:
    with Recorder(workload.model, folder, optimizer=workload.optimizer):
        workload.step()
    yield


def _recorder(**arguments: Any) -> Variant:
    return lambda workload, folder: Recorder(workload.model, folder, optimizer=workload.optimizer, **arguments)


VARIANTS: dict[str, Variant] = {
    BARE: _bare,
    "forward": _recorder(phases=("forward",)),
    "all phases": _recorder(),
    "full": _recorder(stats="full"),
    SAMPLED: _recorder(trace_batches=range(1, 10**9, SAMPLE_EVERY), on_overflow="ignore"),
    "closed": _attached_then_closed,
    SEED: _seed,
    "detect_anomaly": lambda workload, folder: torch.autograd.set_detect_anomaly(True),
}


def time_of_step(workload: Workload, variant: str, steps: int, clock: Clock) -> float:
    """Median seconds of a step under a variant, after one step to warm up."""
    with tempfile.TemporaryDirectory() as folder, VARIANTS[variant](workload, Path(folder)):
        workload.step()
        seconds = [_timed(workload.step, clock) for _ in range(max(steps, 3) if variant == SAMPLED else steps)]
    if variant == SAMPLED:  # the first is recorded, the second writes its dump
        return (seconds[0] + seconds[1] + (SAMPLE_EVERY - 2) * statistics.median(seconds[2:])) / SAMPLE_EVERY
    return statistics.median(seconds)


def measure(
    name: str, variants: list[str], rounds: int, steps: int, *, clock: Clock = time.perf_counter, memory: bool = False
) -> list[Result]:
    """All variants on one workload, interleaved."""
    workload = make_workload(name)
    print(f"\n{name}: {workload.describe()}; {rounds} rounds of {steps} steps", flush=True)
    workload.step()
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    order = random.Random(0)
    for _ in range(rounds):
        for variant in order.sample(variants, len(variants)):
            times[variant].append(time_of_step(workload, variant, steps, clock))
    peaks = {variant: peak_memory(name, variant, 3) for variant in variants} if memory else {}
    return [_result(name, variant, times, peaks) for variant in variants]


def peak_memory(workload: str, variant: str, steps: int) -> float:
    """Peak resident MiB of a process that does nothing else; the smaller of two tries, for what is noise only adds."""
    command = [sys.executable, __file__, "--peak-of", workload, variant, str(steps)]
    tries = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    return min(float(said.split()[-1]) for said in tries)


def _print_own_peak(workload_name: str, variant: str, steps: int) -> None:
    workload = make_workload(workload_name)
    with tempfile.TemporaryDirectory() as folder, VARIANTS[variant](workload, Path(folder)):
        for _ in range(steps):
            workload.step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _result(workload: str, variant: str, times: dict[str, list[float]], peaks: dict[str, float]) -> Result:
    ratios = _ratios(times, variant)
    low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    seed_overhead = statistics.median(_ratios(times, SEED)) - 1 if SEED in times else 0.0
    return Result(
        workload=workload,
        variant=variant,
        step_ms=1000 * statistics.median(times[variant]),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        of_seed=(ratio - 1) / seed_overhead if seed_overhead > 0 else None,
        memory_mib=peaks[variant] - peaks[BARE] if peaks else None,
    )


def _ratios(times: dict[str, list[float]], variant: str) -> list[float]:
    return [mine / bare for mine, bare in zip(times[variant], times[BARE], strict=True)]


def _timed(work: Callable[[], object], clock: Clock) -> float:
    begun = clock()
    work()
    return clock() - begun


def table(results: list[Result]) -> str:
    """The results as aligned text."""
    lines = [f"{'variant':<16}{'step':>11}{'to bare':>9}{'quartiles':>17}{'of seed':>9}{'memory':>12}"]
    for result in results:
        of_seed = "" if result.of_seed is None else f"{result.of_seed:.3f}"
        memory = "" if result.memory_mib is None else f"{result.memory_mib:+.1f} MiB"
        quartiles = f"{result.ratio_low:.3f} .. {result.ratio_high:.3f}"
        lines.append(
            f"{result.variant:<16}{result.step_ms:>8.1f} ms{result.ratio:>9.3f}{quartiles:>17}{of_seed:>9}{memory:>12}"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two workloads, few rounds, no memory")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, metavar="NAME", help=", ".join(VARIANTS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each variant in a round")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds, for a machine that is not idle")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--peak-of", nargs=3, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = _parser().parse_args()
    if options.peak_of:
        _print_own_peak(options.peak_of[0], options.peak_of[1], int(options.peak_of[2]))
        return
    variants = [BARE, *(v for v in options.variants or VARIANTS if v != BARE)]
    rounds = options.rounds or (3 if options.quick else 9)
    clock = time.process_time if options.cpu_time else time.perf_counter
    results = []
    for name in options.workloads or list(WORKLOADS)[: 2 if options.quick else None]:
        results += (found := measure(name, variants, rounds, options.steps, clock=clock, memory=not options.quick))
        print(table(found), flush=True)
    said = json.dumps({"torch": torch.__version__, "results": [asdict(result) for result in results]}, indent=1)
    if options.json:
        options.json.write_text(said + "\n")
    else:
        print(said)


if __name__ == "__main__":
    main()
