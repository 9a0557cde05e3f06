"""What storing costs: appending to the ring, spilling it, the size of the dump, and reading it back.

    python benchmarks/storage.py [--quick] [--json PATH]

The records imitate a decoder of 16 blocks (210 modules) in mixed precision, all three phases: names, shapes and
roles repeat from batch to batch, a child's output is the next one's input, parameters drift, and every number has
the random digits of a value rounded to its tensor's dtype.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from recorder.dump import read_dump, write_dump
from recorder.reading import read
from recorder.records import Frame, Layout, Statistics, TensorRecord
from recorder.ring import Ring, scan
from recorder.schema import Phase, Role, RunInfo

_T = TypeVar("_T")

BLOCKS = 16
CHUNK_FRAMES = 2_000
START_NS = 1_750_000_000_000_000_000


class Model:
    """Numbers of a training run that never was, a batch at a time."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._layouts: dict[tuple[str, tuple[int, ...]], Layout] = {}
        self._weights: dict[str, float] = {}
        self._seq, self._t_ns = 0, START_NS

    def frames(self) -> Iterator[Frame]:
        """Frames without end."""
        for batch in itertools.count():
            yield from self._forward(batch)
            yield from self._backward(batch)
            yield from self._optimizer(batch)

    def _forward(self, batch: int) -> Iterator[Frame]:
        flow = self._activation(Role.INPUT, "0", (4, 512, 1024))
        for module, kind, width in _leaves():
            weight = self._weight(module, kind)
            after = self._activation(Role.OUTPUT, "", (4, 512, width))
            yield self._frame(batch, Phase.FORWARD, module, kind, (*weight, flow, after))
            flow = after._replace(role=Role.INPUT, key="0")
        yield self._frame(batch, Phase.FORWARD, "", "Decoder", (flow, flow._replace(role=Role.OUTPUT, key="logits")))

    def _backward(self, batch: int) -> Iterator[Frame]:
        flow = self._activation(Role.GRAD_OUTPUT, "", (4, 512, 1024), 1e-3)
        for module, kind, width in reversed(_leaves()):
            onward = self._activation(Role.GRAD_INPUT, "0", (4, 512, width), 1e-3)
            gradient = self._activation(Role.GRADIENT, "weight", (width, 1024), 1e-4)
            yield self._frame(batch, Phase.BACKWARD, module, kind, (flow, onward, gradient))
            flow = onward._replace(role=Role.GRAD_OUTPUT, key="")

    def _optimizer(self, batch: int) -> Iterator[Frame]:
        for module, kind, width in _leaves():
            state = [
                self._float32(Role.OPTIMIZER_STATE, f"weight.{name}", (width, 1024), scale)
                for name, scale in (("exp_avg", 1e-4), ("exp_avg_sq", 1e-8))
            ]
            self._weights[module] = self._weights.get(module, 0.2) * (1 + 1e-4 * self._random.standard_normal())
            yield self._frame(batch, Phase.OPTIMIZER, module, kind, (*self._weight(module, kind), *state))

    def _frame(self, batch: int, phase: Phase, module: str, kind: str, records: tuple[TensorRecord, ...]) -> Frame:
        self._seq += 1
        self._t_ns += int(2e5 * self._random.lognormal())
        depth = module.count(".") + 1 if module else 0
        return Frame(batch, batch, self._seq, 0, self._t_ns, phase, module, kind, depth, True, False, records)

    def _weight(self, module: str, kind: str) -> tuple[TensorRecord, ...]:
        largest = float(np.float32(self._weights.setdefault(module, 0.2 * self._random.lognormal(0, 0.3))))
        layout = self._layout("float32", (1024, 1024) if kind == "Linear" else (1024,))
        return (TensorRecord(Role.PARAMETER, "weight", layout, _healthy(largest * 2.0**-20, largest)),)

    def _activation(self, role: Role, key: str, shape: tuple[int, ...], scale: float = 8.0) -> TensorRecord:
        lowest, largest = np.float16(scale * self._random.lognormal(0, 0.5, 2) * (2.0**-12, 1)).astype(float).tolist()
        return TensorRecord(role, key, self._layout("float16", shape), _healthy(lowest, largest))

    def _float32(self, role: Role, key: str, shape: tuple[int, ...], scale: float) -> TensorRecord:
        lowest, largest = np.float32(scale * self._random.lognormal(0, 0.5, 2) * (2.0**-20, 1)).astype(float).tolist()
        return TensorRecord(role, key, self._layout("float32", shape), _healthy(lowest, largest))

    def _layout(self, dtype: str, shape: tuple[int, ...]) -> Layout:
        if (dtype, shape) not in self._layouts:
            self._layouts[dtype, shape] = Layout(dtype, str(shape), "cuda:0", int(np.prod(shape)))
        return self._layouts[dtype, shape]


def _healthy(lowest: float, largest: float) -> Statistics:
    return Statistics(lowest, largest, None, None, 0, 0, 0)


def _leaves() -> list[tuple[str, str, int]]:
    """(module, class, output width) in execution order."""
    leaves = [("model.embed_tokens", "Embedding", 1024)]
    for i in range(BLOCKS):
        block = f"model.layers.{i}"
        leaves += [(f"{block}.input_layernorm", "RMSNorm", 1024)]
        leaves += [(f"{block}.self_attn.{n}_proj", "Linear", 1024) for n in "qkvo"]
        leaves += [(f"{block}.self_attn", "Attention", 1024), (f"{block}.post_attention_layernorm", "RMSNorm", 1024)]
        leaves += [(f"{block}.mlp.{n}", "Linear", 4096) for n in ("gate_proj", "up_proj")]
        leaves += [(f"{block}.mlp.act_fn", "SiLU", 4096), (f"{block}.mlp.down_proj", "Linear", 1024)]
        leaves += [(f"{block}.mlp", "MLP", 1024), (block, "DecoderLayer", 1024)]
    return [*leaves, ("model.norm", "RMSNorm", 1024), ("lm_head", "Linear", 32000)]


Row = dict[str, Any]


def append_costs(directory: Path, rounds: int) -> Row:
    """Microseconds of this thread's own time, without what others took from it: medians of rounds by turns."""
    ring = Ring.create(directory, run_id="storage", rank=0, capacity=65_536)
    frames = list(itertools.islice(Model().frames(), CHUNK_FRAMES))
    of_four = [frame._replace(records=(frame.records * 2)[:4]) for frame in frames]
    count = sum(len(frame.records) for frame in frames)
    ways: dict[str, tuple[Callable[[], None], int]] = {
        "one by one, us/record": (lambda: _one_by_one(ring, frames), count),
        "in bulk, us/record": (lambda: ring.append_many(frames), count),
        "frame of 4, us/frame": (lambda: _one_by_one(ring, of_four), len(frames)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (way, units) in ways.items():
            times[name].append(_timed(way, time.thread_time)[1] / units * 1e6)
    ring.unlink()
    return {name: statistics.median(taken) for name, taken in times.items()}


def spill_costs(directory: Path, records: int, rounds: int) -> Row:
    """Seconds and bytes of one dump with that many records, and of reading it back."""
    ring = _filled_ring(directory, records)
    times = {name: [0.0] * rounds for name in ("table s", "write s", "read_dump s", "read s", "scan s")}
    size = 0
    for i in range(rounds):
        table, times["table s"][i] = _timed(ring.table)
        path, times["write s"][i] = _timed(partial(write_dump, directory / "d.parquet", table, RunInfo("storage")))
        times["read_dump s"][i] = _timed(partial(read_dump, path))[1]
        times["read s"][i] = _timed(partial(read, path))[1]
        times["scan s"][i] = _timed(partial(scan, ring.path))[1]
        size = path.stat().st_size
        path.unlink()
    ring.unlink()
    return {"records": records, **{name: statistics.median(t) for name, t in times.items()}, "MB": size / 1e6}


def _filled_ring(directory: Path, records: int) -> Ring:
    ring = Ring.create(directory, run_id="storage", rank=0, capacity=records)
    frames = Model().frames()
    while ring.position < records:
        ring.append_many(list(itertools.islice(frames, CHUNK_FRAMES)))
    return ring


def _one_by_one(ring: Ring, frames: list[Frame]) -> None:
    append = ring.append
    for frame in frames:
        append(frame)


def _timed(action: Callable[[], _T], clock: Callable[[], float] = time.perf_counter) -> tuple[_T, float]:
    started = clock()
    result = action()
    return result, clock() - started


def _table(rows: list[Row]) -> str:
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cell(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and no more than 10^5 records")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    sizes = [10**n for n in (range(3, 6) if options.quick else range(3, 7))]
    with tempfile.TemporaryDirectory() as name:
        appending = append_costs(Path(name), 5 if options.quick else 41)
        print(_table([appending]), end="\n\n")
        spilling = [spill_costs(Path(name), size, 1 if options.quick else 5) for size in sizes]
        print(_table(spilling))
    if options.json is not None:
        options.json.write_text(json.dumps({"append": appending, "spill": spilling}, indent=1) + "\n")


if __name__ == "__main__":
    main()
