"""The depth picture as a small tidy table: where each point lies, and which points are left out. Pure.

A screen has some hundred columns of pixels, and a dump may have a million records. So where there are too many points,
each column of pixels keeps the largest and the smallest of each role and metric, and everything non-finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from recorder.schema import DtypeLimits
from viewer.columns import Floats, Ints, Mask, Records
from viewer.filters import Filter
from viewer.query import select

POINTS = 5_000
MARKS = 20_000
_PLACE = ("seq", "batch", "step", "call", "phase", "recompute", "module", "module_class", "role", "key")
_VALUES = ("dtype", "shape", "abs_min", "abs_max", "num_nan", "num_posinf", "num_neginf", "has_nan", "has_inf")
_COLUMNS = 1024
_FEWEST_COLUMNS = 64
COLUMNS = (*_PLACE, *_VALUES, "flagged", "expected", "origin")


@dataclass(frozen=True)
class Picture:
    """What is to be drawn.

    points: one row a point: COLUMNS, `x`, `metric`, `value` (0 and above) and `headroom` (binades).
    marks: one row for each non-finite record: COLUMNS, `x` and `headroom`.
    frames: `x`, `seq` and `module` of each frame in view. batches: `batch`, `start`, `end` of each in view.
    shown, total: points and marks that are here, and that there are.
    """

    points: pd.DataFrame
    marks: pd.DataFrame
    frames: pd.DataFrame
    batches: pd.DataFrame
    x: str
    shown: int
    total: int


def picture(
    records: Records,
    chosen: Filter,
    finfo: dict[str, DtypeLimits],
    points: int = POINTS,
    origin: dict[str, Any] | None = None,
) -> Picture:
    """The records in view as points and marks, at most about `points` of them beside the non-finite ones.

    origin: seq, role and key of the record that the verdict names, when the dump's own column does not.
    """
    rows = select(records, chosen)
    seq, batch = records.whole("seq")[rows], records.whole("batch")[rows]
    x = _x(records, rows, chosen.x, seq, batch)
    is_origin = _is_origin(records, rows, origin)
    flagged = records.truth("flagged")[rows] | is_origin
    kept, total = _kept(records, rows, x, chosen, flagged, points)
    marked = _marked(records, rows, x, flagged, is_origin)
    places = np.concatenate([*kept.values(), marked])
    described = _described(records, rows[places], finfo).assign(x=x[places])
    drawn, marks = described.iloc[: -len(marked) or None], described.iloc[len(places) - len(marked) :]
    return Picture(
        points=drawn.assign(**_numbers(records, rows, kept)),
        marks=marks.assign(origin=is_origin[marked]),
        frames=_frames(records, rows, x, seq),
        batches=_batches(x, batch),
        x=chosen.x,
        shown=len(drawn) + len(marks),
        total=total + int(flagged.sum()),
    )


def _x(records: Records, rows: Ints, axis: str, seq: Ints, batch: Ints) -> Floats:
    """Where each row lies: frames one apart; or its depth, or batch, with its frames spread over 0.8 of a unit."""
    if not len(rows):
        return np.empty(0)
    frame = np.cumsum(np.diff(seq, prepend=seq[0]) != 0)
    if axis == "execution":
        return frame.astype(np.float64)
    column = records.whole("depth")[rows] if axis == "depth" else batch
    return column + _spread(column, frame)


def _spread(column: Ints, frame: Ints) -> Floats:
    """Each row's place among the frames with the same value, from -0.4 to 0.4."""
    value = column[np.flatnonzero(np.diff(frame, prepend=-1))]
    order = np.argsort(value, kind="stable")
    start = np.searchsorted(value[order], value[order], side="left")
    count = np.searchsorted(value[order], value[order], side="right") - start
    offset = np.empty(len(value))
    offset[order] = 0.8 * (np.arange(len(value)) - start + 0.5) / count - 0.4
    return offset[frame]


def _is_origin(records: Records, rows: Ints, origin: dict[str, Any] | None) -> Mask:
    if origin is None or origin.get("seq") is None:
        return records.truth("origin")[rows]
    here = records.whole("seq") == int(origin["seq"])
    for name in ("role", "key"):
        if origin.get(name) is not None:
            here &= records.is_text(name, [str(origin[name])])
    return np.asarray(here[rows])


def _kept(
    records: Records, rows: Ints, x: Floats, chosen: Filter, flagged: Mask, points: int
) -> tuple[dict[str, Ints], int]:
    """For each metric the positions in `rows` that are drawn; and how many there are to draw."""
    role = records.codes("role")[rows]
    values = {metric: records.numbers(metric)[rows] for metric in chosen.metrics}
    total = sum(int(np.isfinite(value).sum()) for value in values.values())
    if total <= points:
        return {metric: np.flatnonzero(np.isfinite(value)) for metric, value in values.items()}, total
    group = _groups(role, x, points // (2 * len(values))) * 2
    always = flagged if flagged.sum() <= MARKS else np.zeros_like(flagged)
    return {metric: _extremes(value, group, always) for metric, value in values.items()}, total


def _groups(role: Ints, x: Floats, most: int) -> Ints:
    """The role and column of pixels of each row; as many columns as there may be with at most `most` groups."""
    pixel = _pixel(x, _COLUMNS)
    present = np.zeros((int(role.max()) + 1, _COLUMNS), dtype=np.bool_)
    present[role, pixel] = True
    wide = 1
    while present.sum() > most and present.shape[1] > _FEWEST_COLUMNS:
        present = present[:, 0::2] | present[:, 1::2]
        wide *= 2
    return np.asarray(role * _COLUMNS + pixel // wide)


def _pixel(x: Floats, columns: int) -> Ints:
    low = float(x.min())
    scale = columns / ((float(x.max()) - low) or 1.0)
    return np.minimum(((x - low) * scale).astype(np.int64), columns - 1)


def _extremes(value: Floats, group: Ints, always: Mask) -> Ints:
    """Positions of the largest and smallest of each group, zeros apart, and of all that must stay."""
    drawable = np.isfinite(value)
    group = group + (value == 0)
    keep = drawable & always
    for sign in (1.0, -1.0):
        keep[_largest(np.where(drawable, sign * value, -np.inf), group, drawable)] = True
    return np.flatnonzero(keep)


def _largest(value: Floats, group: Ints, drawable: Mask) -> Ints:
    """The position of the first largest of each group."""
    best = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(best, group, value)
    return _first_of_each(group, np.flatnonzero(drawable & (value == best[group])))


def _first_of_each(group: Ints, candidates: Ints) -> Ints:
    """The first of the candidates in each group."""
    first = np.full(int(group.max(initial=0)) + 1, -1)
    first[group[candidates[::-1]]] = candidates[::-1]
    return first[first >= 0]


def _marked(records: Records, rows: Ints, x: Floats, flagged: Mask, origin: Mask) -> Ints:
    """Positions in `rows` of what is non-finite; beyond MARKS only the first of each role and column of pixels."""
    found = np.flatnonzero(flagged)
    if len(found) <= MARKS:
        return found
    columns = 1_000
    nan = records.truth("has_nan")[rows][found]
    group = (records.codes("role")[rows][found] * columns + _pixel(x, columns)[found]) * 2 + nan
    return np.union1d(found[_first_of_each(group, np.arange(len(found)))], np.flatnonzero(origin))


def _described(records: Records, rows: Ints, finfo: dict[str, DtypeLimits]) -> pd.DataFrame:
    frame: pd.DataFrame = records.take(rows, COLUMNS).to_pandas()
    return frame.assign(headroom=records.headroom(finfo, rows))


def _numbers(records: Records, rows: Ints, kept: dict[str, Ints]) -> dict[str, Any]:
    """The metric and value of each point."""
    values = [records.numbers(metric)[rows[places]] for metric, places in kept.items()]
    metrics = np.repeat(list(kept), [len(places) for places in kept.values()])
    return {"metric": metrics, "value": np.concatenate([*values, np.empty(0)])}


def _frames(records: Records, rows: Ints, x: Floats, seq: Ints) -> pd.DataFrame:
    """One row a frame, in order of execution."""
    first = np.flatnonzero(np.diff(seq, prepend=-2) != 0) if len(seq) else np.empty(0, dtype=np.int64)
    modules = pd.Categorical.from_codes(records.codes("module")[rows[first]], pd.Index(records.texts("module")))
    return pd.DataFrame({"x": x[first], "seq": seq[first], "module": modules})


def _batches(x: Floats, batch: Ints) -> pd.DataFrame:
    found = pd.DataFrame({"batch": batch, "x": x}).groupby("batch")["x"].agg(start="min", end="max")
    return found.reset_index()
