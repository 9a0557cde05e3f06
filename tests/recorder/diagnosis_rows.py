"""Rows of dumps and pieces of evidence for tests of the diagnosis, short to write and to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd

from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.rows import Value
from recorder.schema import DUMP_SCHEMA, DtypeLimits, RunInfo, Trigger, TriggerKind

FINFO = {
    "float16": DtypeLimits(65504.0, 2.0**-14, 2.0**-24, 2.0**-10, 16),
    "float32": DtypeLimits((2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2.0**-23, 32),
}
Row = dict[str, Any]


def row(
    seq: int,
    module: str,
    role: str,
    key: str = "",
    abs_max: float | None = 1.0,
    *,
    nan: int = 0,
    posinf: int = 0,
    neginf: int = 0,
    **changes: Any,
) -> Row:
    """One record of a forward frame of batch 0 in float16."""
    plain: Row = {
        **dict.fromkeys(DUMP_SCHEMA.names),
        **{"rank": 0, "batch": 0, "step": 0, "call": 0, "phase": "forward", "training": True, "recompute": False},
        **{"module_class": "Linear", "depth": module.count(".") + 1, "dtype": "float16", "shape": "(4, 16)"},
        **{"device": "cpu", "numel": 64, "abs_min": None if abs_max is None else 1e-3, "expected": False},
        **{"num_nan": nan, "num_posinf": posinf, "num_neginf": neginf, "has_nan": nan > 0},
        **{"has_inf": posinf + neginf > 0, "flagged": nan + posinf + neginf > 0, "origin": False},
    }
    return {**plain, "seq": seq, "module": module, "role": role, "key": key, "abs_max": abs_max, **changes}


def linear(seq: int, module: str, given: float, result: float | None, **changes: Any) -> list[Row]:
    """The frame of a module with a weight; `changes` are of its output."""
    batch = {name: changes[name] for name in ("batch", "module_class") if name in changes}
    return [
        row(seq, module, "parameter", "weight", 0.5, **batch),
        row(seq, module, "input", "0", given, **batch),
        row(seq, module, "output", "", result, **changes),
    ]


def table(rows: Iterable[Row], categorical: bool = True) -> pd.DataFrame:
    """The rows as `recorder.dump.to_frame` gives them."""
    frame = pd.DataFrame(list(rows), columns=DUMP_SCHEMA.names)
    texts = ("phase", "module", "module_class", "role", "key", "dtype", "shape", "device")
    return frame.astype(dict.fromkeys(texts, "category")) if categorical else frame


def info(trigger: Trigger | None = None, **changes: Any) -> RunInfo:
    return replace(RunInfo("run-a", trigger=trigger, finfo=dict(FINFO)), **changes)


def overflow_at(one: Row) -> Trigger:
    """The trigger that a recorder would have made of this record."""
    places = {name: one[name] for name in ("batch", "step", "seq", "call", "phase", "module", "role", "key")}
    return Trigger(TriggerKind.OVERFLOW.value, **places)


def value(role: str, key: str = "", abs_max: float | None = 1.0, **changes: Any) -> Value:
    """One record as evidence: finite, float16, of a module called `net.part`."""
    plain = Value(
        module="net.part",
        module_class="Part",
        role=role,
        key=key,
        dtype="float16",
        shape="(4, 16)",
        numel=64,
        abs_min=None if abs_max is None else 1e-3,
        abs_max=abs_max,
    )
    return replace(plain, **changes)


def bad(role: str = "output", key: str = "", abs_max: float | None = 1.0, **changes: Any) -> Value:
    """A flagged record; NaN where `changes` name no other kind."""
    kinds = {"num_nan", "num_posinf", "num_neginf"} & set(changes)
    return value(role, key, abs_max, flagged=True, **({} if kinds else {"num_nan": 1}), **changes)


def evidence(first: Value, *beside: Value, **changes: Any) -> Evidence:
    """Evidence about a bad value and what else its frame holds."""
    frame = tuple(replace(one, module=first.module, module_class=first.module_class) for one in (*beside, first))
    forward = tuple(one for one in frame if one.role in ("parameter", "buffer", "input", "output"))
    return Evidence(**{"first": first, "frame": frame, "forward": forward, **changes})
