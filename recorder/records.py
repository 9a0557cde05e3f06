"""Frames and tensor records: plain frozen data, made in hooks and handed down the line."""

from __future__ import annotations

from typing import NamedTuple

from recorder.schema import Phase, Role


class Layout(NamedTuple):
    """What a tensor is, before its values. A non-tensor has its Python type as dtype and the rest empty."""

    dtype: str
    shape: str | None
    device: str | None
    numel: int | None


class Statistics(NamedTuple):
    """Numbers of one tensor; None is "not computed", never 0. `abs_min` and `abs_max` are over finite elements."""

    abs_min: float | None = None
    abs_max: float | None = None
    mean: float | None = None
    rms: float | None = None
    num_nan: int | None = None
    num_posinf: int | None = None
    num_neginf: int | None = None
    num_zero: int | None = None
    num_subnormal: int | None = None

    @property
    def has_nan(self) -> bool | None:
        return None if self.num_nan is None else self.num_nan > 0

    @property
    def has_inf(self) -> bool | None:
        if self.num_posinf is None or self.num_neginf is None:
            return None
        return self.num_posinf > 0 or self.num_neginf > 0

    @property
    def flagged(self) -> bool:
        return bool(self.num_nan or self.num_posinf or self.num_neginf)


NOT_MEASURED = Statistics()


class TensorRecord(NamedTuple):
    """One tensor in one frame: one row of a dump."""

    role: Role
    key: str
    layout: Layout
    statistics: Statistics
    expected: bool = False


class Frame(NamedTuple):
    """One module call in one phase, with its records.

    t_ns: nanoseconds since the epoch. depth: levels below the root. origin: the outputs of this frame are
    non-finite while its inputs and parameters are finite (set on its flagged output records in a dump).
    """

    batch: int
    step: int
    seq: int
    call: int
    t_ns: int
    phase: Phase
    module: str
    module_class: str
    depth: int
    training: bool
    recompute: bool
    records: tuple[TensorRecord, ...]
    origin: bool = False
