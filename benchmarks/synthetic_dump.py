"""Dumps of any size that look like a real run: an fp16 transformer whose last feed-forwards climb into the limit.

For measuring and for looking at the viewer; the numbers are made up, the schema and the metadata are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recorder.dump import write_dump
from recorder.schema import DUMP_SCHEMA, BatchInfo, DtypeLimits, ModuleInfo, Overhead, RunInfo, Trigger

FINFO = {
    "float16": DtypeLimits(65504.0, 2.0**-14, 2.0**-24, 2.0**-10, 16),
    "float32": DtypeLimits(float(np.finfo(np.float32).max), 2.0**-126, 2.0**-149, 2.0**-23, 32),
}
START_NS = 1_750_000_000_000_000_000
HIDDEN = 512


@dataclass(frozen=True)
class Row:
    """One record of the batch that is repeated: where it is, and log10 of its abs max in the first batch."""

    frame: int
    phase: str
    module: str
    module_class: str
    role: str
    key: str
    dtype: str
    shape: str
    numel: int
    level: float
    slope: float = 0.0


def write_synthetic_dump(path: Path, records: int, blocks: int = 24, backward: bool = True) -> Path:
    """Write a dump of about `records` records that ends in an overflow; returns its path."""
    rows = list(_batch(blocks, backward))
    batches = max(1, round(records / len(rows)))
    table = synthetic_table(rows, batches)
    while table.num_rows < 0.99 * records:  # it ended early, in an overflow
        batches = max(batches + 1, round(batches * records / table.num_rows))
        table = synthetic_table(rows, batches)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dump(path, table, _info(table, rows, batches))
    return path


def synthetic_table(rows: list[Row], batches: int, seed: int = 0) -> pa.Table:
    """The batch repeated `batches` times, growing; the origin and what follows it are non-finite."""
    random = np.random.default_rng(seed)
    many = len(rows) * batches
    batch = np.repeat(np.arange(batches), len(rows))
    grown = batch / max(1, batches - 1)
    level = np.tile([row.level for row in rows], batches) + grown * np.tile([row.slope for row in rows], batches)
    frames = np.tile([row.frame for row in rows], batches)
    abs_max = 10.0 ** (level + random.normal(0, 0.06, many))
    abs_min = abs_max * 10.0 ** -(4.5 + np.abs(random.normal(0, 0.7, many)))
    abs_min = np.where(abs_min < FINFO["float16"].smallest_subnormal, 0.0, abs_min)
    bad = (abs_max > FINFO["float16"].max) & np.tile([row.dtype == "float16" for row in rows], batches)
    end = _end_of_frame(frames, bad, len(rows))
    seq = batch * (max(row.frame for row in rows) + 1) + frames
    plain: dict[str, Any] = {
        "rank": np.zeros(many),
        "batch": batch,
        "step": batch,
        "seq": seq,
        "call": np.zeros(many),
        "t_ns": START_NS + seq * 40_000,
        "training": np.ones(many, bool),
        "recompute": np.zeros(many, bool),
        "depth": np.tile([row.module.count(".") + 1 if row.module else 0 for row in rows], batches),
        "numel": np.tile([row.numel for row in rows], batches),
        "abs_min": abs_min,
        "abs_max": np.minimum(abs_max, 64_992.0),
        "num_nan": np.zeros(many),
        "num_posinf": np.where(bad, 3, 0),
        "num_neginf": np.zeros(many),
        "has_nan": np.zeros(many, bool),
        "has_inf": bad,
        "flagged": bad,
        "expected": np.zeros(many, bool),
        "origin": bad & (np.cumsum(bad) == 1),
    }
    texts = ("phase", "module", "module_class", "role", "key", "dtype", "shape")
    columns = {name: pa.array(values[:end]).cast(DUMP_SCHEMA.field(name).type) for name, values in plain.items()}
    columns |= {name: _repeated([str(getattr(row, name)) for row in rows], batches, end) for name in texts}
    columns["device"] = _repeated(["cuda:0"] * len(rows), batches, end)
    missing = {name: pa.nulls(end, DUMP_SCHEMA.field(name).type) for name in DUMP_SCHEMA.names if name not in columns}
    return pa.table({name: {**columns, **missing}[name] for name in DUMP_SCHEMA.names}, schema=DUMP_SCHEMA)


def _end_of_frame(frames: npt.NDArray[Any], bad: npt.NDArray[Any], period: int) -> int:
    """How many rows there are up to the end of the first frame with something non-finite."""
    if not bad.any():
        return len(bad)
    first = int(np.argmax(bad))
    same = np.flatnonzero(frames[first : first + period] != frames[first])
    return first + int(same[0]) if len(same) else len(bad)


def _repeated(texts: list[str], batches: int, end: int) -> pa.DictionaryArray:
    names, codes = np.unique(texts, return_inverse=True)
    return pa.DictionaryArray.from_arrays(np.tile(codes.astype(np.int32), batches)[:end], names.tolist())


def _batch(blocks: int, backward: bool) -> Iterator[Row]:
    forward = list(_forward(blocks))
    yield from forward
    if backward:
        yield from _backward(forward)


def _forward(blocks: int) -> Iterator[Row]:
    for frame, (module, module_class, weight, given, out, slope) in enumerate(_modules(blocks)):
        at = (frame, "forward", module, module_class)
        if weight is not None:
            yield Row(*at, "parameter", "weight", "float16", f"({HIDDEN}, {HIDDEN})", HIDDEN**2, weight)
        yield Row(*at, "input", "0", "float16", f"(8, 64, {HIDDEN})", 512 * HIDDEN, given, slope)
        yield Row(*at, "output", "", "float16", f"(8, 64, {HIDDEN})", 512 * HIDDEN, out, slope)


def _backward(forward: list[Row]) -> Iterator[Row]:
    last = forward[-1].frame
    for row in reversed([row for row in forward if row.role != "input"]):
        at = (2 * last + 1 - row.frame, "backward", row.module, row.module_class)
        if row.role == "output":
            shape, numel = row.shape, row.numel
            yield Row(*at, "grad_output", "0", "float16", shape, numel, -2.5 - 0.02 * (last - row.frame) / 10)
            yield Row(*at, "grad_input", "0", "float16", shape, numel, -2.6 - 0.02 * (last - row.frame) / 10)
        else:
            yield Row(*at, "gradient", row.key, "float16", row.shape, row.numel, -3.1)


def _modules(blocks: int) -> Iterator[tuple[str, str, float | None, float, float, float]]:
    """(module, class, weight, input, output, slope) of each frame, children before their parents."""
    yield ("embed_tokens", "Embedding", -0.2, 3.0, 0.7, 0.0)
    stream = 0.7
    for i in range(blocks):
        block = f"encoder.block.{i}"
        late = i / max(1, blocks - 1)
        for name in "qkvo":
            yield (f"{block}.attention.{name}", "Linear", -0.9, 0.4, 0.8 + 0.3 * late, 0.0)
        yield (f"{block}.attention", "Attention", None, stream, 0.9, 0.0)
        yield (f"{block}.norm", "RMSNorm", 0.1, stream, 0.4, 0.0)
        yield (f"{block}.ff.wi_0", "Linear", -0.6, 0.4, 1.1 + 1.0 * late, 0.6 * late)
        yield (f"{block}.ff.wi_1", "Linear", -0.6, 0.4, 1.1 + 1.0 * late, 0.6 * late)
        yield (f"{block}.ff.dropout", "Dropout", None, 1.6 + 1.6 * late, 1.6 + 1.6 * late, 1.0 * late)
        yield (f"{block}.ff.wo", "Linear", -0.3, 1.6 + 1.6 * late, 1.5 + 2.4 * late, 1.0 * late**2)
        yield (f"{block}.ff", "GatedFeedForward", None, 0.4, 1.5 + 2.3 * late, 0.8 * late**2)
        stream = max(stream, 1.2 + 1.9 * late)
        yield (block, "Block", None, stream, stream, 0.4 * late**2)
    yield ("encoder", "Encoder", None, 0.7, stream, 0.4)
    yield ("lm_head", "Linear", -0.4, 0.5, 1.4, 0.2)
    yield ("", "EncoderModel", None, 3.0, 1.4, 0.2)


def _info(table: pa.Table, rows: list[Row], batches: int) -> RunInfo:
    origin = next((r for r in table.slice(max(0, table.num_rows - 50)).to_pylist() if r["origin"]), None)
    trigger = Trigger("traced_batch", batch=batches - 1)
    if origin is not None:
        places = ("batch", "step", "seq", "call", "phase", "module", "role", "key")
        trigger = Trigger("overflow", **{name: origin[name] for name in places})
    return RunInfo(
        run_id="synthetic",
        start_time="2025-06-15T15:06:40+00:00",
        trigger=trigger,
        evicted=12_480,
        settings={"on_overflow": "raise", "stats": "minmax"},
        overhead=Overhead(seconds=4.1, batch_seconds=182.0, share=0.0225),
        versions={"overflight": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        modules=tuple(_module_table(rows)),
        finfo=dict(FINFO),
        batches=tuple(_batches(batches)),
    )


def _module_table(rows: list[Row]) -> Iterator[ModuleInfo]:
    classes = {row.module: row.module_class for row in rows}
    parents = {name.rsplit(".", i)[0] for name in classes for i in range(1, name.count(".") + 1)}
    names = sorted({"", *classes, *parents}, key=_natural)
    for order, name in enumerate(names):
        parent = name.rpartition(".")[0] if name else None
        yield ModuleInfo(name, classes.get(name, "ModuleList"), parent, order)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")] if name else []


def _batches(count: int) -> Iterator[BatchInfo]:
    random = np.random.default_rng(1)
    for i in range(count):
        done = i / max(1, count - 1)
        loss = 9.2 - 4.0 * (1 - np.exp(-4 * done)) + random.normal(0, 0.08)
        norm = 1.1 + 2.0 * done**6 + abs(random.normal(0, 0.1))
        yield BatchInfo(i, i, True, float(loss), 1e-3 * min(1.0, i / 10 + 0.1), 2.0**16, float(norm), False)
