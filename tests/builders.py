"""Dumps and runs made by hand, for tests that need no torch.

`overflow_run` writes what a recorder would have written of a small fp16 transformer whose gated feed-forward climbs
into the limit of fp16 in its third batch. `healthy_run` writes traced batches of the same model that stay small.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recorder.dump import write_dump
from recorder.records import Frame, Layout, Statistics, TensorRecord
from recorder.ring import Ring
from recorder.schema import (
    DUMP_SCHEMA,
    BatchInfo,
    DtypeLimits,
    ModuleInfo,
    Overhead,
    Phase,
    Role,
    RunInfo,
    SilentWarning,
    Suppressed,
    Trigger,
    TriggerKind,
)

FP16 = DtypeLimits(
    max=65504.0, smallest_normal=6.103515625e-05, smallest_subnormal=5.960464477539063e-08, eps=2**-10, bits=16
)
FP32 = DtypeLimits(
    max=3.4028234663852886e38,
    smallest_normal=1.1754943508222875e-38,
    smallest_subnormal=1.401298464324817e-45,
    eps=2**-23,
    bits=32,
)
FINFO = {"float16": FP16, "float32": FP32}
START_NS = 1_750_000_000_000_000_000
START_TIME = "2025-06-15T15:06:40+00:00"
BLOCKS = 4
ORIGIN_MODULE = f"encoder.block.{BLOCKS - 1}.ff.wo"


def tensor(
    role: Role,
    key: str,
    abs_max: float | None,
    *,
    abs_min: float | None = 1e-4,
    dtype: str = "float16",
    shape: tuple[int, ...] = (2, 8, 64),
    nan: int = 0,
    posinf: int = 0,
    neginf: int = 0,
    expected: bool = False,
) -> TensorRecord:
    """A measured tensor; `abs_max=None` when no element is finite."""
    numel = 1
    for size in shape:
        numel *= size
    layout = Layout(dtype, str(shape), "cpu", numel)
    return TensorRecord(
        role,
        key,
        layout,
        Statistics(abs_min if abs_max is not None else None, abs_max, None, None, nan, posinf, neginf),
        expected,
    )


def not_a_tensor(role: Role, key: str, python_type: str) -> TensorRecord:
    """A `None`, a bool or whatever else a module was called with."""
    return TensorRecord(role, key, Layout(python_type, None, None, None), Statistics())


def frame(seq: int, module: str, records: Iterable[TensorRecord], **changes: Any) -> Frame:
    """A forward frame of batch 0; `changes` are fields of `Frame`."""
    plain = Frame(
        batch=0,
        step=0,
        seq=seq,
        call=0,
        t_ns=START_NS + seq * 1_000_000,
        phase=Phase.FORWARD,
        module=module,
        module_class="Linear",
        depth=module.count(".") + 1 if module else 0,
        training=True,
        recompute=False,
        records=tuple(records),
    )
    return plain._replace(**changes)


def table_of(frames: Iterable[Frame], rank: int = 0) -> pa.Table:
    """The frames as the rows of a dump."""
    rows = [row for one in frames for row in _rows(one, rank)]
    columns = {name: [row[name] for row in rows] for name in DUMP_SCHEMA.names}
    return pa.table(columns, schema=DUMP_SCHEMA)


def dump_of(path: Path, frames: Iterable[Frame], info: RunInfo) -> Path:
    """Write the frames as a real dump."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dump(path, table_of(frames, info.rank), info)
    return path


def run_info(run_id: str = "run-a", **changes: Any) -> RunInfo:
    """Metadata of the transformer's run; `changes` are fields of `RunInfo`."""
    plain = RunInfo(
        run_id=run_id,
        start_time=START_TIME,
        settings={"on_overflow": "raise", "stats": "minmax", "max_frames": 21},
        overhead=Overhead(seconds=0.12, batch_seconds=4.0, share=0.03),
        versions={"overflight": "0.1.0", "torch": "2.13.0"},
        modules=module_table(),
        finfo=dict(FINFO),
    )
    return replace(plain, **changes)


def overflow_run(log_dir: Path, run_id: str = "run-a", rank: int = 0, warnings: tuple[SilentWarning, ...] = ()) -> Path:
    """A run whose last feed-forward overflows in batch 2; returns its directory, with one dump and `_run.json`."""
    frames = [one for batch in range(3) for one in batch_frames(batch, growth=3.0**batch)]
    origin = next(
        i for i, one in enumerate(frames) if any(r.statistics.flagged and not r.expected for r in one.records)
    )
    frames[origin] = frames[origin]._replace(origin=True)
    frames = frames[: origin + 1]
    info = run_info(
        run_id,
        rank=rank,
        trigger=trigger_at(frames[-1], Role.OUTPUT, ""),
        evicted=1200,
        warnings=warnings,
        batches=_batches(3),
        suppressed=(Suppressed("additive mask", "encoder", "input", "attention_mask", 3),),
    )
    directory = log_dir / run_id
    dump_of(directory / f"overflow-batch000002-rank{rank:04d}.parquet", frames, info)
    write_run_file(directory, replace(info, trigger=None))
    return directory


def healthy_run(log_dir: Path, run_id: str = "healthy", batches: int = 2, scale: float = 1.0) -> Path:
    """A run with one traced dump a batch, in which nothing is abnormal; returns its directory."""
    directory = log_dir / run_id
    for batch in range(batches):
        trigger = Trigger(TriggerKind.TRACED_BATCH.value, batch=batch, step=batch)
        info = run_info(run_id, trigger=trigger, batches=_batches(batch + 1))
        dump_of(directory / f"trace-batch{batch:06d}-rank0000.parquet", batch_frames(batch, growth=scale), info)
    write_run_file(directory, run_info(run_id, batches=_batches(batches)))
    return directory


def quiet_run(log_dir: Path, run_id: str = "quiet", warnings: tuple[SilentWarning, ...] = ()) -> Path:
    """A closed run that wrote no dump, only `_run.json`; returns its directory."""
    directory = log_dir / run_id
    write_run_file(directory, run_info(run_id, warnings=warnings))
    return directory


def killed_run(log_dir: Path, run_id: str = "killed") -> Path:
    """A run whose process was killed after two healthy batches: only its ring is left; returns its directory."""
    directory = log_dir / run_id
    directory.mkdir(parents=True)
    program = f"from tests.builders import write_ring_and_die; write_ring_and_die({str(directory)!r}, {run_id!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    return directory


def live_ring(directory: Path, run_id: str, batches: int = 2) -> Ring:
    """A ring that this process holds open, with the frames of healthy batches."""
    directory.mkdir(parents=True, exist_ok=True)
    ring = Ring.create(directory, run_id=run_id, rank=0, capacity=4096)
    ring.set_info(run_info(run_id))
    for batch in range(batches):
        ring.append_many(list(batch_frames(batch, growth=1.0)))
    return ring


def write_ring_and_die(directory: str, run_id: str) -> None:
    """Ends the process without a word, as the kernel does when memory is short."""
    live_ring(Path(directory), run_id)
    os.kill(os.getpid(), signal.SIGKILL)


def write_run_file(directory: Path, info: RunInfo) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "_run.json").write_text(info.to_json())


def trigger_at(one: Frame, role: Role, key: str, kind: TriggerKind = TriggerKind.OVERFLOW) -> Trigger:
    """A trigger at one tensor of a frame."""
    return Trigger(kind.value, one.batch, one.step, one.seq, one.call, one.phase.value, one.module, role.value, key)


def headroom_warning(
    batch: int = 1, module: str = ORIGIN_MODULE, text: str = "2.1 binades left, shrinking"
) -> SilentWarning:
    return SilentWarning("headroom", batch, "forward", module, "output", "", text, {"binades": 2.1})


def broken_files(directory: Path, good: Path) -> dict[str, Path]:
    """One file for each way in which a path can be wrong, made from a good dump; the names say which way."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = good.read_bytes()
    contents = {
        "empty": b"",
        "text": b"this is a text file\nwith the right name\n",
        "truncated": whole[: len(whole) // 2],
        "cut_tail": whole[:-1],
    }
    found = {name: directory / f"{name}.parquet" for name in contents}
    for name, content in contents.items():
        found[name].write_bytes(content)
    found["foreign"] = _foreign(directory / "foreign.parquet")
    found["newer"] = _rewritten(directory / "newer.parquet", good, schema_version=b"99")
    found["no_run"] = _rewritten(directory / "no_run.parquet", good, run=b"[]")
    fewer = pq.read_table(good).drop_columns(["abs_max"])
    found["no_column"] = _rewritten(directory / "no_column.parquet", good, fewer)
    found["damaged"] = _bit_flipped(directory / "damaged.parquet", good)
    found["missing"] = directory / "missing.parquet"
    found["no_dumps"] = directory / "no_dumps"
    found["no_dumps"].mkdir()
    return found


def batch_frames(batch: int, growth: float) -> Iterator[Frame]:
    """All forward frames of one batch, children before their parents, as hooks see them.

    growth: the factor by which each feed-forward multiplies.
    """
    model = _Model(batch, growth)
    yield from model.frames()


def module_table() -> tuple[ModuleInfo, ...]:
    """Every module of the transformer, and a decoder that never ran."""
    names = [("", "Transformer"), ("embed", "Embedding"), ("encoder", "Encoder"), ("encoder.block", "ModuleList")]
    for i in range(BLOCKS):
        block = f"encoder.block.{i}"
        names += [(block, "Block")]
        names += [(f"{block}.attention", "Attention"), *((f"{block}.attention.{n}", "Linear") for n in "qkvo")]
        names += [(f"{block}.norm", "RMSNorm"), (f"{block}.ff", "GatedGelu")]
        names += [(f"{block}.ff.{n}", "Linear") for n in ("wi_0", "wi_1", "wo")]
    names += [("head", "Linear"), ("unused_decoder", "Decoder")]
    return tuple(ModuleInfo(n, c, n.rpartition(".")[0] if n else None, i) for i, (n, c) in enumerate(names))


@dataclass
class _Model:
    """Walks the transformer once; what flows in is what flowed out of the module before."""

    batch: int
    growth: float
    seq: int = 0
    value: float = 1.0

    def frames(self) -> Iterator[Frame]:
        self.seq = self.batch * _frames_per_batch()
        classes = {m.name: m.module_class for m in module_table()}
        yield self._embedding()
        for i in range(BLOCKS):
            block = f"encoder.block.{i}"
            before = self.value
            for name in "qkvo":
                yield self._linear(f"{block}.attention.{name}", 1.05)
            yield self._outer(f"{block}.attention", classes, before)
            yield self._linear(f"{block}.norm", 0.8, "RMSNorm")
            before = self.value
            yield self._linear(f"{block}.ff.wi_0", 1.5)
            yield self._linear(f"{block}.ff.wi_1", 1.5)
            yield self._linear(f"{block}.ff.wo", self.growth)
            yield self._outer(f"{block}.ff", classes, before)
            yield self._outer(block, classes, before)
        yield self._outer("encoder", classes, 1.0)
        yield self._linear("head", 0.5)
        yield self._outer("", classes, 1.0)

    def _embedding(self) -> Frame:
        ids = TensorRecord(
            Role.INPUT, "0", Layout("int64", "(2, 8)", "cpu", 16), Statistics(3.0, 250.0, None, None, 0, 0, 0)
        )
        weight = tensor(Role.PARAMETER, "weight", 0.09, abs_min=2e-6, shape=(256, 64))
        return self._next("embed", "Embedding", [weight, ids, tensor(Role.OUTPUT, "", 1.0)])

    def _linear(self, module: str, factor: float, module_class: str = "Linear") -> Frame:
        weight = tensor(Role.PARAMETER, "weight", 0.25 * factor, abs_min=1e-7, shape=(64, 64))
        given = self._activation(Role.INPUT, "0", self.value)
        self.value *= factor
        return self._next(module, module_class, [weight, given, self._activation(Role.OUTPUT, "", self.value)])

    def _outer(self, module: str, classes: dict[str, str], given: float) -> Frame:
        mask = (
            [tensor(Role.INPUT, "attention_mask", 0.0, abs_min=0.0, neginf=4, expected=True)]
            if module == "encoder"
            else []
        )
        nothing = [not_a_tensor(Role.INPUT, "past", "NoneType")] if module.endswith("attention") else []
        rows = [
            self._activation(Role.INPUT, "0", given),
            *mask,
            *nothing,
            self._activation(Role.OUTPUT, "", self.value),
        ]
        return self._next(module, classes[module], rows)

    def _activation(self, role: Role, key: str, value: float) -> TensorRecord:
        """A value beyond fp16 shows as inf, with the largest finite one beside it."""
        if value > FP16.max:
            return tensor(role, key, 64992.0, abs_min=1e-3, posinf=3)
        return tensor(role, key, value, abs_min=value * 1e-4)

    def _next(self, module: str, module_class: str, records: list[TensorRecord]) -> Frame:
        self.seq += 1
        return frame(self.seq, module, records, module_class=module_class, batch=self.batch, step=self.batch)


def _frames_per_batch() -> int:
    return 4 + BLOCKS * 11


def _batches(count: int) -> tuple[BatchInfo, ...]:
    return tuple(
        BatchInfo(i, i, True, loss=5.5 - i, learning_rate=1e-3, loss_scale=None, grad_norm=1.0 + i)
        for i in range(count)
    )


def _rows(one: Frame, rank: int) -> Iterator[dict[str, Any]]:
    for record in one.records:
        statistics = record.statistics
        yield {
            **{name: getattr(one, name) for name in Frame._fields if name in DUMP_SCHEMA.names},
            **record.layout._asdict(),
            **statistics._asdict(),
            "rank": rank,
            "phase": one.phase.value,
            "role": record.role.value,
            "key": record.key,
            "has_nan": statistics.has_nan,
            "has_inf": statistics.has_inf,
            "flagged": statistics.flagged,
            "expected": record.expected,
            "origin": one.origin
            and record.role in (Role.OUTPUT, Role.GRAD_INPUT)
            and statistics.flagged
            and not record.expected,
        }


def _foreign(path: Path) -> Path:
    """Parquet of somebody else's."""
    pq.write_table(pa.table({"city": ["Oslo"], "people": [700_000]}), path)
    return path


def _rewritten(path: Path, good: Path, table: pa.Table | None = None, **metadata: bytes) -> Path:
    """A good dump with other records, or with entries of its metadata replaced."""
    kept = {key: value for key, value in pq.read_metadata(good).metadata.items() if key != b"ARROW:schema"}
    kept.update({f"overflight.{key}".encode(): value for key, value in metadata.items()})
    pq.write_table((pq.read_table(good) if table is None else table).replace_schema_metadata(kept), path)
    return path


def _bit_flipped(path: Path, good: Path) -> Path:
    """A dump with its metadata whole, and damage in the pages of its records."""
    content = bytearray(good.read_bytes())
    for position in range(100, 2000, 50):
        content[position] ^= 0xFF
    path.write_bytes(content)
    return path
