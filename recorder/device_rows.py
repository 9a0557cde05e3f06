"""Tensors to numbers that stay on their device until one read fetches them all."""

from __future__ import annotations

import math

import torch

from recorder.records import NOT_MEASURED, Statistics
from recorder.unwrap import smallest_normal, strided_parts, to_reducible

ROWS = 2048
"""Rows a buffer holds; a further buffer is made when it is full."""

_COLUMNS = 9  # abs_min, abs_max, mean, rms, num_nan, num_posinf, num_neginf, num_zero, num_subnormal


class Row(int):
    """Number of a row whose Statistics are not read yet."""


class DeviceRows:
    """Statistics of one device's tensors, one row a tensor, in preallocated buffers on that device."""

    def __init__(self, device: torch.device, full: bool) -> None:
        self._device = device
        self._full = full
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._buffers = [self._make_buffer()]
        self._used = 0

    def add(self, tensor: torch.Tensor) -> Row | Statistics:
        """Queue the reductions of `tensor` on its stream; nothing is read.

        Returns the row to ask for after `read`, or the Statistics themselves where no values are needed.
        """
        parts = strided_parts(tensor)
        if parts is None:
            return NOT_MEASURED
        values = [to_reducible(part).reshape(-1) for part in parts.tensors if part.numel()]
        if not values:
            return _without_elements(parts.implicit_zeros, tensor.dtype, self._full)
        joined = values[0] if len(values) == 1 else torch.cat(values)
        self._next_row().copy_(_reduce(joined, parts.implicit_zeros, tensor.dtype, self._full, self._dtype))
        self._used += 1
        return Row(self._used - 1)

    def read(self) -> list[Statistics]:
        """Fetch all rows added since the last read: one host read. Row numbers start again at 0."""
        if self._used == 0:
            return []
        full_buffers = self._buffers[: (self._used + ROWS - 1) // ROWS]
        joined = full_buffers[0] if len(full_buffers) == 1 else torch.cat(full_buffers)
        rows = joined[: self._used].cpu().tolist()
        self._used = 0
        return [_statistics(row, self._full) for row in rows]

    def _next_row(self) -> torch.Tensor:
        number, row = divmod(self._used, ROWS)
        if number == len(self._buffers):
            self._buffers.append(self._make_buffer())
        return self._buffers[number][row]

    def _make_buffer(self) -> torch.Tensor:
        with torch.inference_mode(False):  # or it could not be written to after the first evaluation
            return torch.empty((ROWS, _COLUMNS), dtype=self._dtype, device=self._device)


def _reduce(
    values: torch.Tensor, implicit_zeros: int, dtype: torch.dtype, full: bool, out_dtype: torch.dtype
) -> torch.Tensor:
    """One row, without a branch on a value: a branch would be a host read."""
    sizes = values.abs()
    finite = sizes < math.inf
    low = torch.where(finite, sizes, math.inf).amin()
    high = torch.where(finite, sizes, -math.inf).amax()
    if implicit_zeros:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    counts = [values.isnan().sum(), (values == math.inf).sum(), (values == -math.inf).sum()]
    more = _full_columns(values, sizes, finite, implicit_zeros, dtype) if full else [low.new_full((), math.nan)] * 4
    columns = [low, high, more[0], more[1], *counts, more[2], more[3]]
    return torch.stack([column.to(out_dtype) for column in columns])


def _full_columns(
    values: torch.Tensor, sizes: torch.Tensor, finite: torch.Tensor, implicit_zeros: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    wide = torch.where(finite, values, 0.0).to(torch.float32 if values.device.type == "mps" else torch.float64)
    count = finite.sum() + implicit_zeros
    zeros = (sizes == 0).sum()
    mean = wide.new_full((), math.nan) if dtype.is_complex else wide.sum() / count
    rms = (wide.square().sum() / count).sqrt()
    return [mean, rms, zeros + implicit_zeros, _subnormals(sizes, zeros, dtype)]


def _subnormals(sizes: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_complex:
        return sizes.new_full((), math.nan)
    if not dtype.is_floating_point:
        return torch.zeros_like(zeros)
    return (sizes < smallest_normal(dtype)).sum() - zeros


def _statistics(row: list[float], full: bool) -> Statistics:
    low, high, mean, rms = (number if math.isfinite(number) else None for number in row[:4])
    nan, posinf, neginf = (int(count) for count in row[4:7])
    if not full:
        return Statistics(low, high, None, None, nan, posinf, neginf)
    zeros, subnormals = (None if math.isnan(count) else int(count) for count in row[7:9])
    return Statistics(low, high, mean, rms, nan, posinf, neginf, zeros, subnormals)


def _without_elements(implicit_zeros: int, dtype: torch.dtype, full: bool) -> Statistics:
    low = 0.0 if implicit_zeros else None
    if not full:
        return Statistics(low, low, None, None, 0, 0, 0)
    mean, subnormals = (None, None) if dtype.is_complex else (low, 0)
    return Statistics(low, low, mean, low, 0, 0, 0, implicit_zeros, subnormals)
