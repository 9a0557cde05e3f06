"""From records and a filter to small tables: pages of records, facts, what there is to choose from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from recorder.schema import DtypeLimits, Phase, Role
from viewer.columns import Ints, Mask, Records
from viewer.filters import Filter, is_below, matches

SORTS = ("seq", "abs_max", "abs_min", "headroom")
PAGE_SIZE = 100


@dataclass(frozen=True)
class Page:
    """One page of records. rows: DUMP_SCHEMA and `headroom`; number: from 1; total: records on all pages."""

    rows: pd.DataFrame
    number: int
    pages: int
    total: int


@dataclass(frozen=True)
class Choices:
    """What the records leave to choose: only values that occur. batches: first and last, None without records."""

    phases: tuple[str, ...]
    roles: tuple[str, ...]
    dtypes: tuple[str, ...]
    batches: tuple[int, int] | None
    both_modes: bool
    metrics: tuple[str, ...]


def select(records: Records, chosen: Filter) -> Ints:
    """The positions of the records in view, in order. int64 of shape (found,)."""
    mask = np.ones(len(records), dtype=np.bool_)
    for column, wanted in (("phase", chosen.phases), ("role", chosen.roles), ("dtype", chosen.dtypes)):
        if wanted:
            mask &= records.is_text(column, wanted)
    if chosen.module:
        below = [is_below(module, chosen.module) for module in records.texts("module")]
        mask &= records.looked_up("module", below)
    if chosen.name.strip():
        mask &= _named(records, chosen.name)
    if chosen.batches is not None:
        batch = records.whole("batch")
        mask &= (batch >= chosen.batches[0]) & (batch <= chosen.batches[1])
    if chosen.training is not None:
        mask &= records.truth("training") == chosen.training
    if chosen.flagged:
        mask &= records.truth("flagged")
    return np.flatnonzero(mask)


def _named(records: Records, name: str) -> Mask:
    return np.logical_or(
        *(
            records.looked_up(column, [matches(name, text) for text in records.texts(column)])
            for column in ("module", "module_class")
        )
    )


def choices(records: Records) -> Choices:
    """What there is to choose from in these records."""
    batch, training = records.whole("batch"), records.truth("training")
    phases, roles = records.used("phase"), records.used("role")
    return Choices(
        phases=tuple(phase.value for phase in Phase if phase.value in phases),
        roles=tuple(role.value for role in Role if role.value in roles),
        dtypes=tuple(_tensor_dtypes(records)),
        batches=(int(batch.min()), int(batch.max())) if len(batch) else None,
        both_modes=bool(training.any() and not training.all()),
        metrics=tuple(m for m in ("abs_max", "abs_min", "rms") if records.table.column(m).null_count < len(records)),
    )


def _tensor_dtypes(records: Records) -> list[str]:
    """Without the Python types of what was no tensor."""
    measured = records.whole("numel") >= 0
    return [text for text in records.used("dtype") if bool((records.is_text("dtype", [text]) & measured).any())]


def page(
    records: Records,
    chosen: Filter,
    finfo: dict[str, DtypeLimits],
    number: int = 1,
    size: int = PAGE_SIZE,
    sort: str = "seq",
) -> Page:
    """One page of the records in view. number: from 1, and brought into range; sort: one of SORTS."""
    rows = _sorted(records, select(records, chosen), finfo, sort)
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    here = rows[(number - 1) * size : number * size]
    frame: pd.DataFrame = records.take(here).to_pandas()
    return Page(frame.assign(headroom=records.headroom(finfo, here)), number, pages, len(rows))


def _sorted(records: Records, rows: Ints, finfo: dict[str, DtypeLimits], sort: str) -> Ints:
    """Largest abs max first, smallest abs min or headroom first; what was not computed comes last."""
    if sort == "seq":
        return rows
    value = records.headroom(finfo, rows) if sort == "headroom" else records.numbers(sort)[rows]
    value = -value if sort == "abs_max" else value
    return rows[np.argsort(value, kind="stable")]


def exported(records: Records, chosen: Filter) -> pa.Table:
    """All records in view, as rows of DUMP_SCHEMA."""
    return records.take(select(records, chosen))


def frame_of(records: Records, seq: int, finfo: dict[str, DtypeLimits]) -> pd.DataFrame:
    """The records of one frame: DUMP_SCHEMA and `headroom`; no rows when there is no such frame."""
    rows = np.flatnonzero(records.whole("seq") == seq)
    frame: pd.DataFrame = records.take(rows).to_pandas()
    return frame.assign(headroom=records.headroom(finfo, rows))


def growth(records: Records, module: str, role: str, key: str, phase: str) -> pd.DataFrame:
    """One tensor over its batches: `batch`, `abs_max`, `abs_min`, `flagged`, `dtype`; the extremes of its calls."""
    mask = np.ones(len(records), dtype=np.bool_)
    for column, text in (("module", module), ("role", role), ("key", key), ("phase", phase)):
        mask &= records.is_text(column, [text])
    found: pd.DataFrame = records.take(
        np.flatnonzero(mask), ("batch", "abs_max", "abs_min", "flagged", "dtype")
    ).to_pandas()
    how = {"abs_max": "max", "abs_min": "min", "flagged": "any", "dtype": "first"}
    return found.groupby("batch", as_index=False).agg(how)
