"""The vocabulary, the Arrow schema of a dump, its version, and the metadata of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = "1"
SCHEMA_VERSION_KEY = b"overflight.schema_version"
RUN_INFO_KEY = b"overflight.run"


class Phase(str, Enum):
    """Which part of a training step a frame belongs to."""

    __hash__ = str.__hash__  # Enum's own is a Python function, and hooks look these up by the thousand

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Role(str, Enum):
    """What a tensor is to the module of its frame."""

    __hash__ = str.__hash__

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    OUTPUT = "output"
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"


class TriggerKind(str, Enum):
    """Why a dump exists."""

    OVERFLOW = "overflow"
    TRACED_BATCH = "traced_batch"
    EXCEPTION = "exception"
    SIGNAL = "signal"
    MANUAL = "manual"
    RECOVERED = "recovered"


_TEXT = pa.dictionary(pa.int32(), pa.string())

DUMP_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("batch", pa.int64()),
        ("step", pa.int64()),
        ("seq", pa.int64()),
        ("call", pa.int32()),
        ("t_ns", pa.int64()),
        ("phase", _TEXT),
        ("training", pa.bool_()),
        ("recompute", pa.bool_()),
        ("module", _TEXT),
        ("module_class", _TEXT),
        ("depth", pa.int16()),
        ("role", _TEXT),
        ("key", _TEXT),
        ("dtype", _TEXT),
        ("shape", _TEXT),
        ("device", _TEXT),
        ("numel", pa.int64()),
        ("abs_min", pa.float64()),
        ("abs_max", pa.float64()),
        ("mean", pa.float64()),
        ("rms", pa.float64()),
        ("num_nan", pa.int64()),
        ("num_posinf", pa.int64()),
        ("num_neginf", pa.int64()),
        ("num_zero", pa.int64()),
        ("num_subnormal", pa.int64()),
        ("has_nan", pa.bool_()),
        ("has_inf", pa.bool_()),
        ("flagged", pa.bool_()),
        ("expected", pa.bool_()),
        ("origin", pa.bool_()),
    ]
)
"""One row a record, sorted by seq. `t_ns` is nanoseconds since the epoch; `shape` reads "(4, 64)"."""


@dataclass(frozen=True)
class Trigger:
    """Why a dump exists, and the place that caused it; places are None where the kind has none."""

    kind: str
    batch: int | None = None
    step: int | None = None
    seq: int | None = None
    call: int | None = None
    phase: str | None = None
    module: str | None = None
    role: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class SilentWarning:
    """A silent failure: nothing is non-finite, but something is wrong. Never a trigger.

    `numbers` holds the figures behind `text`, by name.
    """

    kind: str
    batch: int
    phase: str
    module: str
    role: str
    key: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModuleInfo:
    """One line of the module table, so that a viewer can draw modules that never ran.

    `containers` says which Python types held what was opened into keys, where that is not a tuple:
    {"output": "list", "input.0": "dict"}.
    """

    name: str
    module_class: str
    parent: str | None
    order: int
    containers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DtypeLimits:
    """`torch.finfo` of one dtype, kept so that a reader needs no torch. `max` and the others are plain floats."""

    max: float
    smallest_normal: float
    smallest_subnormal: float
    eps: float
    bits: int


@dataclass(frozen=True)
class BatchInfo:
    """What ran beside the frames of one batch; None where it was not seen.

    `skipped` is True when a gradient scaler skipped the step that followed this batch, False when a step was
    taken, None when there was none.
    """

    batch: int
    step: int
    training: bool
    loss: float | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    grad_norm: float | None = None
    skipped: bool | None = None


@dataclass(frozen=True)
class Suppressed:
    """How often a non-finite value at one place was taken as legitimate, and by which rule."""

    rule: str
    module: str
    role: str
    key: str
    count: int


@dataclass(frozen=True)
class Overhead:
    """What the recorder itself cost: seconds spent in hooks, seconds of all batches, and their quotient."""

    seconds: float
    batch_seconds: float
    share: float


@dataclass(frozen=True)
class RunInfo:
    """The metadata that every dump, ring and `_run.json` carries.

    start_time is ISO 8601 in UTC; `settings` are the recorder's arguments; `versions` maps package to version;
    `dtypes` maps each floating dtype seen to its limits.
    """

    run_id: str
    rank: int = 0
    world_size: int = 1
    start_time: str = ""
    trigger: Trigger | None = None
    warnings: tuple[SilentWarning, ...] = ()
    evicted: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    overhead: Overhead | None = None
    versions: dict[str, str] = field(default_factory=dict)
    modules: tuple[ModuleInfo, ...] = ()
    finfo: dict[str, DtypeLimits] = field(default_factory=dict)
    batches: tuple[BatchInfo, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()

    def to_json(self) -> str:
        """The JSON object that is stored under `overflight.run`."""
        return json.dumps(_strict(dataclasses.asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> RunInfo:
        """Read what `to_json` wrote; keys added by a newer minor version are ignored.

        Raises:
            ValueError: the text is not such an object.
        """
        raw = json.loads(text)
        if not isinstance(raw, dict) or not isinstance(raw.get("run_id"), str):
            raise ValueError("no run metadata")
        values = _known(cls, raw)
        values["trigger"] = _one(Trigger, raw.get("trigger"))
        values["overhead"] = _one(Overhead, raw.get("overhead"))
        values["warnings"] = _many(SilentWarning, raw.get("warnings"))
        values["modules"] = _many(ModuleInfo, raw.get("modules"))
        values["batches"] = tuple(BatchInfo(**_numbers(_known(BatchInfo, item))) for item in raw.get("batches") or ())
        values["suppressed"] = _many(Suppressed, raw.get("suppressed"))
        values["finfo"] = {k: _one(DtypeLimits, v) for k, v in (raw.get("finfo") or {}).items()}
        return cls(**values)


def _known(cls: type, raw: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(cls)}
    return {k: v for k, v in raw.items() if k in names}


def _strict(value: Any) -> Any:
    """JSON has no nan and inf: they are the texts "nan", "inf" and "-inf", which every language turns into numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value


def _numbers(raw: dict[str, Any]) -> dict[str, Any]:
    """The texts of `_strict` as numbers again, where all texts are such."""
    return {key: float(item) if isinstance(item, str) else item for key, item in raw.items()}


def _one(cls: type, raw: Any) -> Any:
    return None if raw is None else cls(**_known(cls, raw))


def _many(cls: type, raw: Any) -> tuple[Any, ...]:
    return tuple(_one(cls, item) for item in raw or ())
