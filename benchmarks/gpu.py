"""What recording costs on one GPU: a decoder of about a billion parameters, in bfloat16 and in float16.

    python benchmarks/gpu.py [--tiny] [--device cuda] [--steps 5] [--rounds 5] [--json FILE]

Bare steps, the recorder in batch and in frame mode and the seed class take turns in one process; a ratio compares
medians. Host reads are counted where Python asks for a value. The numbers of one batch are compared with those that
the CPU computes from the same tensors. `--tiny --device cpu` shows that the script works, and measures nothing.
Needs torch and transformers; under three minutes on a current GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs as a script

import torch
from torch.overrides import TorchFunctionMode

from recorder import Recorder, read
from recorder.stats import measure

HOST_READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__format__", "numpy")


class CountHostReads(TorchFunctionMode):
    """Counts calls that make Python wait for a tensor of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on_device = args and isinstance(args[0], torch.Tensor)
        self.count += bool(on_device and getattr(func, "__name__", "") in HOST_READS)
        return func(*args, **(kwargs or {}))


def make_model(tiny: bool, dtype: torch.dtype, device: str) -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    if not tiny:
        size = dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=20, num_attention_heads=16)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32000 if not tiny else 128, **size)).to(device, dtype)
    ids = torch.randint(0, 100, (1, 16) if tiny else (4, 512), device=device)
    return model, {"input_ids": ids, "labels": ids}


@contextlib.contextmanager
def seed_class(model: Any) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {module: list(module._forward_hooks) for module in model.modules()}
    with contextlib.redirect_stdout(io.StringIO()):
        DebugUnderflowOverflow(model)
        yield
    for module, hooks in before.items():
        for key in [key for key in module._forward_hooks if key not in hooks]:
            del module._forward_hooks[key]


def variants(model: Any, optimizer: Any, folder: str) -> dict[str, Callable[[], Any]]:
    def recorder(**settings: Any) -> Callable[[], Any]:
        return lambda: Recorder(model, folder, optimizer=optimizer, on_overflow="warn", **settings)

    return {
        "bare": contextlib.nullcontext,
        "forward, batch": recorder(phases=("forward",), check="batch"),
        "forward, frame": recorder(phases=("forward",), check="frame"),
        "all phases, batch": recorder(check="batch"),
        "seed": lambda: seed_class(model),
    }


def train_step(model: Any, batch: dict[str, torch.Tensor], optimizer: Any) -> None:
    optimizer.zero_grad()
    model(**batch).loss.backward()
    optimizer.step()


def timed(run: Callable[[], None], steps: int, device: str) -> float:
    def synchronize() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    run()
    synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        run()
    synchronize()
    return (time.perf_counter() - begun) / steps


def measure_dtype(dtype: torch.dtype, arguments: argparse.Namespace) -> dict[str, Any]:
    model, batch = make_model(arguments.tiny, dtype, arguments.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def run() -> None:
        train_step(model, batch, optimizer)

    with tempfile.TemporaryDirectory() as folder:
        choices = variants(model, optimizer, folder)
        times: dict[str, list[float]] = {name: [] for name in choices}
        for _ in range(arguments.rounds):
            for name, make in choices.items():
                with make():
                    times[name].append(timed(run, arguments.steps, arguments.device))
        return {
            "parameters": sum(p.numel() for p in model.parameters()),
            "ratio": ratios(times),
            "host_reads_a_batch": {name: host_reads(make, run) for name, make in choices.items()},
            "device_memory_mib": {name: device_memory(make, run, arguments.device) for name, make in choices.items()},
            "differs_from_cpu": differences(model, batch, folder),
        }


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    bare = statistics.median(times["bare"])
    return {name: round(statistics.median(values) / bare, 4) for name, values in times.items()}


def host_reads(make: Callable[[], Any], run: Callable[[], None]) -> int:
    """Reads in one batch in steady state: the difference between three batches and two."""
    counts: list[int] = []
    for batches in (2, 3):
        with make(), CountHostReads() as reads:
            for _ in range(batches):
                run()
        counts.append(reads.count)
    return counts[1] - counts[0]


def device_memory(make: Callable[[], Any], run: Callable[[], None], device: str) -> float | None:
    if device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    with make():
        run()
    return round(torch.cuda.max_memory_allocated() / 2**20, 1)


def differences(model: Any, batch: dict[str, torch.Tensor], folder: str) -> list[str]:
    """Weights whose abs min or abs max the device got otherwise than the CPU."""
    with torch.no_grad(), Recorder(model, folder, phases=("forward",), check="batch", trace_batches=[0]) as recorder:
        model(**batch)
    records = read(recorder.dumps[0]).query("role == 'parameter'").set_index(["module", "key"])
    wrong = []
    for name, parameter in model.named_parameters():
        module, _, key = name.rpartition(".")
        if (module, key) not in records.index:
            continue
        seen, right = records.loc[(module, key)], measure(parameter.detach().cpu())
        if (float(seen["abs_min"]), float(seen["abs_max"])) != (right.abs_min, right.abs_max):
            wrong.append(name)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here: --tiny --device cpu shows that the script works")
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    result: dict[str, Any] = {"device": name, "torch": str(torch.__version__)}
    for dtype in (torch.bfloat16, torch.float16):
        result[str(dtype).removeprefix("torch.")] = measure_dtype(dtype, arguments)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
