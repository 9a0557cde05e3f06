"""Two sets of records, compared record by record. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from viewer.tables import aligned, number, plural, printable

PLACE = ["batch", "phase", "module", "call", "recompute", "role", "key"]
COMPARED = ["dtype", "shape", "abs_min", "abs_max", "mean", "rms", "num_nan", "num_posinf", "num_neginf"]
CHANGES_SHOWN = 12


@dataclass(frozen=True)
class Difference:
    """What differs between A and B.

    changed: the records that both have and whose numbers differ, in A's order, columns `abs_max_a`, `abs_max_b`, ...;
    only_a, only_b: places that one side lacks; common: how many records were compared.
    """

    changed: pd.DataFrame
    only_a: pd.DataFrame
    only_b: pd.DataFrame
    common: int

    @property
    def differs(self) -> bool:
        return not (self.changed.empty and self.only_a.empty and self.only_b.empty)


def compare(a: pd.DataFrame, b: pd.DataFrame, rtol: float = 0.0) -> Difference:
    """Match records on batch, phase, module, call, role and key (and rank, when a side has several), then compare.

    rtol: relative difference of a number that still counts as equal; 0 asks for the very same numbers.
    """
    place = PLACE if a["rank"].nunique() <= 1 and b["rank"].nunique() <= 1 else ["rank", *PLACE]
    sides = [_numbered(side, place) for side in (a, b)]
    both = sides[0].merge(sides[1], how="outer", on=[*place, "again"], suffixes=("_a", "_b"), indicator="side")
    common = both[both["side"] == "both"]
    changed = common[_differs(common, rtol)].sort_values("order_a")
    return Difference(
        changed=changed,
        only_a=both[both["side"] == "left_only"].sort_values("order_a"),
        only_b=both[both["side"] == "right_only"].sort_values("order_b"),
        common=len(common),
    )


def difference_text(found: Difference, name_a: str, name_b: str) -> str:
    """The first divergence, the largest changes, and what one side lacks; ends in a newline."""
    lines = [f"A: {printable(name_a)}", f"B: {printable(name_b)}", ""]
    lines += _lacking(found)
    if not found.changed.empty:
        lines += ["First divergence, in A's order of execution:", *_rows(found.changed.head(1)), ""]
        lines += [_changes_title(found), *_rows(_largest(found.changed).head(CHANGES_SHOWN))]
    elif found.common:
        lines += [f"The same: {plural(found.common, 'record')} compared, no number differs."]
    return "\n".join(lines).rstrip() + "\n"


def _numbered(side: pd.DataFrame, place: list[str]) -> pd.DataFrame:
    """The compared columns as plain text and numbers, with `order`, and `again` for a place that comes twice."""
    kept = side[[*place, "seq", *COMPARED]].copy()
    for column in ("phase", "module", "role", "key", "dtype", "shape"):
        if column in kept:
            kept[column] = kept[column].astype(object)
    kept["again"] = kept.groupby(place, sort=False, dropna=False).cumcount()
    kept["order"] = np.arange(len(kept))
    return kept


def _differs(common: pd.DataFrame, rtol: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found = np.zeros(len(common), dtype=bool)
    for column in COMPARED:
        a, b = common[f"{column}_a"], common[f"{column}_b"]
        same = (a.isna() & b.isna()) | (a == b).fillna(False).astype(bool)
        if rtol and pd.api.types.is_float_dtype(a) and column in ("abs_min", "abs_max", "mean", "rms"):
            same |= ((a - b).abs() <= rtol * np.maximum(a.abs(), b.abs())).fillna(False)
        found |= ~same.to_numpy(dtype=bool)
    return found


def _lacking(found: Difference) -> list[str]:
    if not found.common:
        return [f"No record in common: A has {_span(found.only_a)}, B has {_span(found.only_b)}."]
    lines = [
        f"{plural(len(side), 'record')} only in {name}: {_span(side)}, first {_place(side.iloc[0])}"
        for name, side in (("A", found.only_a), ("B", found.only_b))
        if not side.empty
    ]
    return [*lines, ""] if lines else []


def _span(side: pd.DataFrame) -> str:
    if side.empty:
        return "no records"
    first, last = side["batch"].min(), side["batch"].max()
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def _changes_title(found: Difference) -> str:
    changed = plural(len(found.changed), "record")
    return f"Largest changes, by the ratio of abs max ({changed} of {found.common:,} in common differ):"


def _largest(changed: pd.DataFrame) -> pd.DataFrame:
    """Newly non-finite first, then by how far abs max moved, in binades."""
    bad_a, bad_b = _bad(changed, "a"), _bad(changed, "b")
    return changed.assign(_turned=bad_a != bad_b, _moved=_binades(changed).abs().fillna(0.0)).sort_values(
        ["_turned", "_moved", "order_a"], ascending=[False, False, True], kind="stable"
    )


def _bad(changed: pd.DataFrame, side: str) -> pd.Series[bool]:
    counts = [changed[f"{name}_{side}"].fillna(0) for name in ("num_nan", "num_posinf", "num_neginf")]
    return (counts[0] + counts[1] + counts[2]) > 0


def _binades(changed: pd.DataFrame) -> pd.Series[float]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log2(changed["abs_max_b"].astype(float)) - np.log2(changed["abs_max_a"].astype(float))
    return pd.Series(ratio, index=changed.index)


def _rows(changed: pd.DataFrame) -> list[str]:
    header = ("seq", "batch", "phase", "module", "tensor", "A abs max", "B abs max", "B / A", "also differs")
    moved = _binades(changed).tolist()
    rows = [_row(record, binades) for (_, record), binades in zip(changed.iterrows(), moved, strict=True)]
    return aligned([header, *rows], frozenset({0, 1, 5, 6, 7}))


def _row(record: pd.Series[Any], moved: float) -> tuple[str, ...]:
    return (
        str(int(record["seq_a"])),
        str(record["batch"]),
        str(record["phase"]),
        str(record["module"]) or "(the model)",
        " ".join(part for part in (str(record["role"]), str(record["key"])) if part),
        _value(record, "a"),
        _value(record, "b"),
        _ratio(moved),
        _others(record),
    )


def _ratio(binades: float) -> str:
    """`1.5`; `2^70` where a plain number says nothing."""
    if not np.isfinite(binades):
        return ""
    return f"2^{binades:.0f}" if abs(binades) > 30 else f"{2.0**binades:.3g}"


def _value(record: pd.Series[Any], side: str) -> str:
    counts = {"nan": "num_nan", "inf": "num_posinf", "-inf": "num_neginf"}
    found = {name: record[f"{column}_{side}"] for name, column in counts.items()}
    bad = [name for name, count in found.items() if pd.notna(count) and count > 0]
    largest = record[f"abs_max_{side}"]
    return " ".join(part for part in ("" if pd.isna(largest) else number(float(largest)), *bad) if part)


def _others(record: pd.Series[Any]) -> str:
    """The other columns that differ; dtype and shape with both values."""
    said = []
    for column in COMPARED:
        a, b = record[f"{column}_a"], record[f"{column}_b"]
        same = a == b if pd.notna(a) and pd.notna(b) else pd.isna(a) and pd.isna(b)
        if same or column == "abs_max":
            continue
        said.append(f"{column} {a} / {b}" if column in ("dtype", "shape") else column)
    return ", ".join(said)


def _place(record: pd.Series[Any]) -> str:
    tensor = " ".join(part for part in (str(record["role"]), str(record["key"])) if part)
    return f"{record['phase']} {tensor} of {printable(str(record['module'])) or 'the model'} in batch {record['batch']}"
