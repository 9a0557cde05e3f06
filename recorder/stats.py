"""Tensors to numbers, read at once: for tensors whose host read costs nothing (the CPU)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import torch

from recorder.records import NOT_MEASURED, Statistics
from recorder.unwrap import smallest_normal, strided_parts, to_reducible

PIECE = 1 << 19
"""Elements reduced at a time. `abs()` needs a temporary: one that stays in cache costs an eighth of a fresh one."""

_SMALL = 1 << 14
"""Below this the allocator's own cache serves as well as a scratch buffer of ours."""


class _Scratch(threading.local):
    """One buffer of PIECE elements for each dtype, in each thread."""

    def __init__(self) -> None:
        self.buffers: dict[torch.dtype, torch.Tensor] = {}

    def like(self, piece: torch.Tensor) -> torch.Tensor:
        return self._buffer(piece.dtype)[: piece.numel()].view(piece.shape)

    def wide(self, piece: torch.Tensor) -> torch.Tensor:
        """The piece as one dimension of float64, in the buffer: sums of squares then neither overflow nor round."""
        flat = self._buffer(torch.float64)[: piece.numel()]
        flat.view(piece.shape).copy_(piece)
        return flat

    def _buffer(self, dtype: torch.dtype) -> torch.Tensor:
        buffer = self.buffers.get(dtype)
        if buffer is None:
            # a normal tensor of the CPU, in whatever mode and default device the first large tensor is met
            with torch.inference_mode(False):
                buffer = self.buffers[dtype] = torch.empty(PIECE, dtype=dtype, device="cpu")
        return buffer


_scratch = _Scratch()


def measure(tensor: torch.Tensor, full: bool = False) -> Statistics:
    """Statistics of any tensor; NOT_MEASURED where it holds no values that could be read.

    abs_min and abs_max are over finite elements, None when there are none. With `full`, mean and rms (over
    finite elements, accumulated in float64), zeros and subnormals too; mean and subnormals of a complex tensor
    stay None, as does a sum that does not fit float64; subnormals of an integer tensor are 0. Call it with
    gradients disabled.
    """
    parts = strided_parts(tensor)
    if parts is None:
        return NOT_MEASURED
    total = Totals(full)
    for part in parts.tensors:
        for piece in _pieces(part):
            total.add(piece)
    total.add_zeros(parts.implicit_zeros)
    return total.statistics(tensor.dtype)


def measure_plain(tensor: torch.Tensor) -> Statistics:
    """As `measure` without `full`, for a plain strided CPU tensor of a REDUCIBLE dtype: the hot path.

    NaN propagates through both reductions, so a finite maximum proves that every element is finite.
    """
    count = tensor.numel()
    if count == 0:
        return EMPTY
    if count <= _SMALL:
        low, high = torch.aminmax(torch.abs(tensor))
        lowest, highest = low.item(), high.item()
    else:
        lowest, highest = _minmax_of_large(tensor)
    if highest < math.inf:
        return Statistics(lowest, highest, None, None, 0, 0, 0)
    return measure(tensor)


def _minmax_of_large(tensor: torch.Tensor) -> tuple[float, float]:
    lows, highs = [], []
    for piece in _pieces(tensor):
        low, high = torch.aminmax(torch.abs(piece, out=_scratch.like(piece)))
        lows.append(low)
        highs.append(high)
    if len(lows) == 1:
        return lows[0].item(), highs[0].item()
    return torch.stack(lows).amin().item(), torch.stack(highs).amax().item()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """`tensor` in parts of at most PIECE elements, without copying it."""
    if tensor.numel() <= PIECE:
        yield tensor
        return
    flat = _flat_view(tensor)
    if flat is not None:
        yield from flat.split(PIECE)
        return
    longest = max(range(tensor.dim()), key=lambda d: tensor.shape[d])
    for half in tensor.chunk(2, longest):
        yield from _pieces(half)


def _flat_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """All elements in memory order as one dimension; None when they are not dense in memory."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)
    if _is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory, each once (a transposed tensor does, a slice does not)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class Totals:
    """Running totals over the pieces of one tensor."""

    def __init__(self, full: bool) -> None:
        self._full = full
        self._count = 0
        self._low = math.inf
        self._high = -math.inf
        self._nan = self._posinf = self._neginf = 0
        self._sum = self._squares = 0.0
        self._zeros = self._subnormals = 0

    def add(self, piece: torch.Tensor) -> None:
        values = to_reducible(piece)
        self._count += values.numel()
        if values.numel() == 0:
            return
        sizes = values.abs()
        low, high = torch.aminmax(sizes)
        if not high.item() < math.inf:
            values, sizes = self._drop_nonfinite(values, sizes)
            if values.numel() == 0:
                return
            low, high = torch.aminmax(sizes)
        lowest = low.item()
        self._low = min(self._low, lowest)
        self._high = max(self._high, high.item())
        if self._full:
            self._add_moments(values)
            if lowest < smallest_normal(piece.dtype):
                self._add_small(piece.dtype, sizes)

    def add_zeros(self, count: int) -> None:
        """Count zeros that a sparse layout does not store."""
        if count:
            self._count += count
            self._low, self._high = 0.0, max(self._high, 0.0)
            self._zeros += count

    def statistics(self, dtype: torch.dtype) -> Statistics:
        finite = self._count - self._nan - self._posinf - self._neginf
        low, high = (self._low, self._high) if finite else (None, None)
        counts = (self._nan, self._posinf, self._neginf)
        if not self._full:
            return Statistics(low, high, None, None, *counts)
        mean = self._sum / finite if finite and not dtype.is_complex and math.isfinite(self._sum) else None
        rms = math.sqrt(self._squares / finite) if finite and math.isfinite(self._squares) else None
        subnormals = None if dtype.is_complex else self._subnormals
        return Statistics(low, high, mean, rms, *counts, self._zeros, subnormals)

    def _drop_nonfinite(self, values: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        finite = sizes < math.inf
        self._nan += int(values.isnan().sum().item())
        self._posinf += int((values == math.inf).sum().item())
        self._neginf += int((values == -math.inf).sum().item())
        return values[finite], sizes[finite]

    def _add_moments(self, values: torch.Tensor) -> None:
        wide = _scratch.wide(values)
        self._sum += wide.sum().item()
        self._squares += torch.dot(wide, wide).item()

    def _add_small(self, dtype: torch.dtype, sizes: torch.Tensor) -> None:
        zeros = sizes.numel() - int(sizes.count_nonzero().item())
        self._zeros += zeros
        if dtype.is_floating_point:
            self._subnormals += int((sizes < smallest_normal(dtype)).sum().item()) - zeros


EMPTY = Statistics(None, None, None, None, 0, 0, 0)
"""A tensor without elements: no extremes, and no non-finite ones."""
