"""Records to the printed report of `transformers.debug_utils.DebugUnderflowOverflow`. Pure: text from a table.

A printed frame is one forward call that has ended; the first of each batch carries the batch's header.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recorder.schema import Phase, Role, RunInfo, TriggerKind

DEFAULT_FRAMES = 21
SEED_OUTPUT_LEVELS = 2
"""The seed opens a tuple that is the output, and tuples in it; it opens nothing in its inputs."""

_INDENT = " " * 17
_HEADER = f"{'abs min':8} {'abs max':8} metadata"
_NONE, _NOT_A_TENSOR = f"{'None':>17}", f"{'not a tensor':>17}"
_EMPTY, _NOT_MEASURED = f"{'empty':>17}", f"{'not measured':>17}"
_EMPTY_TUPLES = ("tuple", "Size")
_PLACE = ["batch", "seq", "module", "module_class", "role", "key", "dtype", "shape", "numel", "expected"]
_NON_FINITE = ["num_nan", "num_posinf", "num_neginf"]
_COLUMNS = [*_PLACE, "abs_min", "abs_max", *_NON_FINITE]


class Line(NamedTuple):
    """One printed value; `row` is None for a container that stays shut."""

    numbers: str
    label: str
    row: Any | None


class Leaf(NamedTuple):
    """One record of an opened value, with what is left of its key below that value."""

    parts: tuple[str, ...]
    row: Any


def hf_report(records: pd.DataFrame, info: RunInfo) -> str:
    """Exactly and only what the seed would have printed for the run that left this dump.

    `records` has the columns of a dump, of one rank, in its order. Empty when the seed would have stayed silent.
    A frame of the root is printed under its own batch, where the seed said the next.
    """
    return _Report(records, info, extended=False).text()


def extended_report(records: pd.DataFrame, info: RunInfo) -> str:
    """The same layout with further lines for tensors the seed could not see.

    Those are buffers, keyword arguments (`input[name]`) and what lies deeper (`output[0][1].name`).
    """
    return _Report(records, info, extended=True).text()


def abs_min_max_text(numbers: Mapping[str, Any], numel: int | None) -> str:
    """The two columns of one tensor, from its statistics by name: a nan hides both, an inf is the greatest."""
    if _count(numbers["num_nan"]):
        return f"{np.nan:8.2e} {np.nan:8.2e}"
    smallest, largest = numbers["abs_min"], numbers["abs_max"]
    if _count(numbers["num_posinf"]) or _count(numbers["num_neginf"]):
        return f"{np.inf if pd.isna(smallest) else smallest:8.2e} {np.inf:8.2e}"
    if pd.isna(largest):
        return _EMPTY if numel == 0 else _NOT_MEASURED
    return f"{smallest:8.2e} {largest:8.2e}"


def frame_lines(rows: Sequence[Any], containers: Mapping[str, str], extended: bool) -> list[Line]:
    """The lines of one frame below its name: parameters, inputs, outputs."""
    lines = [_leaf_line(row.key, row) for row in rows if row.role == Role.PARAMETER]
    if extended:
        lines += [_leaf_line(row.key, row) for row in rows if row.role == Role.BUFFER]
    inputs = [Leaf(tuple(row.key.split(".")), row) for row in rows if row.role == Role.INPUT]
    for name, leaves in _by_first_part(inputs):
        if name.isdigit():
            lines += _value_lines(f"input[{name}]", f"input.{name}", leaves, containers, 0, extended)
        elif extended:
            lines += _tensor_lines(f"input[{name}]", leaves)
    outputs = [Leaf(tuple(row.key.split(".")) if row.key else (), row) for row in rows if row.role == Role.OUTPUT]
    return lines + list(_value_lines("output", "output", outputs, containers, SEED_OUTPUT_LEVELS, extended))


class _Report:
    """The printed frames of one dump, found by seq."""

    def __init__(self, records: pd.DataFrame, info: RunInfo, *, extended: bool) -> None:
        forward = records["phase"].eq(Phase.FORWARD.value) & ~_is_true(records["recompute"])
        self._rows = records.loc[forward, _COLUMNS].sort_values("seq", kind="stable")
        self._info = info
        self._extended = extended
        self._containers = {module.name: module.containers for module in info.modules}
        self._batch_of = self._batches_of_ended_frames()
        self._batch_starts = self._first_frames()

    def text(self) -> str:
        trigger = self._info.trigger
        if trigger is not None and trigger.kind == TriggerKind.TRACED_BATCH.value:
            return "".join(self._traced_frames())
        return self._detection()

    def _may_begin_in_the_middle(self) -> bool:
        """Whether the ring dropped what came before: a traced batch is never dropped in part."""
        trigger = self._info.trigger
        return self._info.evicted > 0 and (trigger is None or trigger.kind != TriggerKind.TRACED_BATCH.value)

    def _batches_of_ended_frames(self) -> dict[int, int]:
        """Seq to batch of every frame that has an output and is complete."""
        ended = self._rows[self._rows["role"] == Role.OUTPUT.value].drop_duplicates("seq")
        if self._may_begin_in_the_middle() and len(self._rows):
            ended = ended[ended["seq"] > self._rows["seq"].iloc[0]]
        return dict(zip(ended["seq"].tolist(), ended["batch"].tolist(), strict=True))

    def _first_frames(self) -> set[int]:
        """The seqs that carry a batch's header."""
        firsts: dict[int, int] = {}
        for seq, batch in self._batch_of.items():
            firsts.setdefault(batch, seq)
        starts = list(firsts.values())
        return set(starts[1:] if self._may_begin_in_the_middle() else starts)

    def _traced_frames(self) -> Iterator[str]:
        trigger = self._info.trigger
        traced = [seq for seq, batch in self._batch_of.items() if trigger is None or batch == trigger.batch]
        for seq, rows in _frames(self._rows[self._rows["seq"].isin(traced)]):
            lines = self._lines(rows)
            yield "".join(f"{alarm}\n" for alarm in _alarms(lines))
            yield f"{self._frame_text(seq, rows, lines)}\n"

    def _detection(self) -> str:
        tripped = self._tripped_seq()
        if tripped is None:
            return ""
        rows = self._rows_of(tripped)
        window = self._window(tripped)
        printed = [*_alarms(self._lines(rows)), f"\nDetected inf/nan during batch_number={rows[0].batch}"]
        printed += [f"Last {len(window)} forward frames:", _HEADER]
        printed.append("\n".join(self._text_of(seq) for seq in window))
        return "\n".join([*printed, "\n\n", ""])

    def _window(self, last: int) -> list[int]:
        """The seqs of the latest frames up to `last`; a traced batch was printed before and starts afresh."""
        limit = self._info.settings.get("max_frames_to_save", DEFAULT_FRAMES)
        before = [seq for seq in self._batch_of if seq < last]
        traced = [seq for seq in before if _is_traced(self._batch_of[seq], self._info)]
        fresh = [seq for seq in before if not traced or seq > traced[-1]]
        return [*fresh, last][-limit:] if limit > 0 else []

    def _tripped_seq(self) -> int | None:
        """The first frame that shows something abnormal: one that has ended, else the trigger's own."""
        rows, trigger = self._rows, self._info.trigger
        bad = rows[_NON_FINITE].fillna(0).gt(0).any(axis=1) & ~_is_true(rows["expected"])
        if trigger is not None and trigger.kind == TriggerKind.OVERFLOW.value:
            bad &= rows["batch"] == trigger.batch
        batches: dict[int, int] = dict(zip(rows.loc[bad, "seq"].tolist(), rows.loc[bad, "batch"].tolist(), strict=True))
        seqs = [seq for seq, batch in batches.items() if not _is_traced(batch, self._info)]
        ended = [seq for seq in seqs if seq in self._batch_of]
        own = [seq for seq in seqs if trigger is not None and seq == trigger.seq]
        return next((seq for seq in ended + own if self._shows_abnormal(seq)), None)

    def _shows_abnormal(self, seq: int) -> bool:
        shown = [line.row for line in self._lines(self._rows_of(seq)) if line.row is not None]
        return any(_alarm_words(row) and not row.expected for row in shown)

    def _rows_of(self, seq: int) -> list[Any]:
        first, end = self._rows["seq"].searchsorted([seq, seq + 1])
        return list(self._rows.iloc[first:end].itertuples(index=False))

    def _lines(self, rows: Sequence[Any]) -> list[Line]:
        return frame_lines(rows, self._containers.get(rows[0].module, {}), self._extended)

    def _text_of(self, seq: int) -> str:
        rows = self._rows_of(seq)
        return self._frame_text(seq, rows, self._lines(rows))

    def _frame_text(self, seq: int, rows: Sequence[Any], lines: Sequence[Line]) -> str:
        first = rows[0]
        text = [f"{_INDENT} {first.module} {first.module_class}"]
        text += [f"{line.numbers} {line.label}" for line in lines]
        if seq in self._batch_starts:
            text[:0] = [f"\n\n{_INDENT} *** Starting batch number={first.batch} ***", _HEADER]
        return "\n".join(text)


def _frames(rows: pd.DataFrame) -> Iterator[tuple[int, list[Any]]]:
    for seq, group in itertools.groupby(rows.itertuples(index=False), key=lambda row: row.seq):
        yield seq, list(group)


def _value_lines(
    label: str, path: str, leaves: Sequence[Leaf], containers: Mapping[str, str], levels: int, extended: bool
) -> Iterator[Line]:
    """The lines of one value, of whose nested tuples the seed opens `levels`."""
    if not leaves:
        return
    first = leaves[0]
    if not first.parts:
        if not (levels and first.row.dtype in _EMPTY_TUPLES and pd.isna(first.row.shape)):
            yield _leaf_line(label, first.row)
    elif levels and path not in containers and first.parts[0].isdigit():
        for index, inner in _by_first_part(leaves):
            yield from _value_lines(f"{label}[{index}]", f"{path}.{index}", inner, containers, levels - 1, extended)
    else:
        yield Line(_NOT_A_TENSOR, label, None)
        if extended:
            yield from _tensor_lines(label, leaves)


def _tensor_lines(label: str, leaves: Iterable[Leaf]) -> Iterator[Line]:
    for leaf in leaves:
        if not pd.isna(leaf.row.shape):
            below = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in leaf.parts)
            yield _leaf_line(f"{label}{below}", leaf.row)


def _by_first_part(leaves: Iterable[Leaf]) -> Iterator[tuple[str, list[Leaf]]]:
    for part, group in itertools.groupby(leaves, key=lambda leaf: leaf.parts[0]):
        yield part, [Leaf(leaf.parts[1:], leaf.row) for leaf in group]


def _leaf_line(label: str, row: Any) -> Line:
    if not pd.isna(row.shape):
        return Line(abs_min_max_text(row._asdict(), row.numel), label, row)
    return Line(_NONE if row.dtype == "NoneType" else _NOT_A_TENSOR, label, row)


def _alarms(lines: Iterable[Line]) -> list[str]:
    """What the seed says of each bad tensor while it looks at it."""
    return [f"{line.label} has {word}" for line in lines if line.row is not None for word in _alarm_words(line.row)]


def _alarm_words(row: Any) -> list[str]:
    words = ["nans"] if _count(row.num_nan) else []
    return [*words, "infs"] if _count(row.num_posinf) or _count(row.num_neginf) else words


def _is_true(column: pd.Series) -> pd.Series:
    """A column of truths with null as false, whatever type pandas gave it."""
    return column.eq(True).fillna(False).astype(bool)


def _count(value: Any) -> int:
    return 0 if pd.isna(value) else int(value)


def _is_traced(batch: int, info: RunInfo) -> bool:
    """Whether the run's settings chose this batch; a predicate can't be asked any more."""
    chosen = info.settings.get("trace_batches", ())
    if not isinstance(chosen, str):
        return batch in chosen
    numbers = re.fullmatch(r"range\((-?\d+), (-?\d+)(?:, (-?\d+))?\)", chosen)
    return numbers is not None and batch in range(*(int(number) for number in numbers.groups(default="1")))
