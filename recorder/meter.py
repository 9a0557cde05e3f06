"""Measures each tensor once: repeats of an unchanged tensor object are answered from memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from recorder.device_rows import DeviceRows, Row
from recorder.layout import Layouts
from recorder.records import NOT_MEASURED, Layout, Statistics
from recorder.stats import measure, measure_plain
from recorder.unwrap import REDUCIBLE

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_MAX_REMEMBERED = 1 << 14


class Measured(NamedTuple):
    """The layout and numbers of one value. `statistics` is a Row until the device's numbers are read."""

    layout: Layout
    statistics: Statistics | Row
    flagged: bool


class _Remembered(NamedTuple):
    reference: Callable[[], torch.Tensor | None]
    version: int
    measured: Measured


class Meter:
    """Tensor to Measured.

    CPU tensors are read at once unless `defer`; tensors of an accelerator always wait for `read_rows`.
    A tensor is known again by object identity and version counter, never by address.
    """

    def __init__(self, *, full: bool, defer: bool) -> None:
        self._full = full
        self._defer = defer
        self._remembered: dict[int, _Remembered] = {}
        self._rows: dict[torch.device, DeviceRows] = {}
        self.layouts = Layouts()
        self.has_rows = False
        self.generation = 0

    def forget(self) -> None:
        """Look again at every tensor: `.data` edits and custom kernels change values and bump no version."""
        self._remembered.clear()
        self.generation += 1

    def measure_value(self, value: Any) -> Measured:
        """The Measured of any leaf; a non-tensor gets its type and null numbers."""
        if isinstance(value, torch.Tensor):
            return self.measure(value)
        return Measured(self.layouts.of_other(value), NOT_MEASURED, False)

    def measure(self, tensor: torch.Tensor, *, remember: bool = True) -> Measured:
        """The Measured of a tensor. Gradients must be disabled; never raises for what cannot be measured."""
        known = self._remembered.get(id(tensor))
        if (
            known is not None
            and known.reference() is tensor
            and not tensor.is_inference()
            and known.version == tensor._version
        ):
            return known.measured
        measured = self._measure_anew(tensor)
        if remember:
            self._remember(tensor, measured)
        return measured

    def read_rows(self) -> dict[torch.device, list[Statistics]]:
        """Fetch all deferred numbers: one host read a device. Rows handed out before are answered by the result."""
        self.has_rows = False
        self.forget()
        return {device: rows.read() for device, rows in self._rows.items()}

    def _remember(self, tensor: torch.Tensor, measured: Measured) -> None:
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.clear()
        try:
            if tensor.is_inference():
                return
            self._remembered[id(tensor)] = _Remembered(_reference_to(tensor), tensor._version, measured)
        except (RuntimeError, TypeError, ValueError):
            return  # a tensor without a version counter, or not initialised yet, is measured each time

    def _measure_anew(self, tensor: torch.Tensor) -> Measured:
        if (
            type(tensor) in _PLAIN_TYPES
            and tensor.dtype in REDUCIBLE
            and tensor.layout is torch.strided
            and tensor.device.type == "cpu"
            and not (self._defer or tensor.is_nested or _unusual_context())
        ):
            try:
                statistics = measure(tensor, True) if self._full else measure_plain(tensor)
                return Measured(self.layouts.of_tensor(tensor), statistics, statistics.flagged)
            except RuntimeError:  # a batched gradient looks plain, and has no value to be read
                pass
        return self._measure_carefully(tensor)

    def _measure_carefully(self, tensor: torch.Tensor) -> Measured:
        try:
            with _disable_current_modes():
                layout = self.layouts.of_tensor(tensor)
                return self._measure_unusual(tensor, layout)
        except Exception:  # whatever a tensor subclass raises: its values cannot be read, and the run goes on
            return Measured(_layout_or_unknown(self.layouts, tensor), NOT_MEASURED, False)

    def _measure_unusual(self, tensor: torch.Tensor, layout: Layout) -> Measured:
        if tensor.device.type == "cpu" and not self._defer:
            statistics = measure(tensor, self._full)
            return Measured(layout, statistics, statistics.flagged)
        rows = self._rows.get(tensor.device)
        if rows is None:
            rows = self._rows[tensor.device] = DeviceRows(tensor.device, self._full)
        row = rows.add(tensor)
        if not isinstance(row, Row):
            return Measured(layout, row, row.flagged)
        self.has_rows = True
        return Measured(layout, row, False)


def _reference_to(tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """A weak reference; to a parameter a plain one, as torch refuses to swap (in `module.to`) what has weak ones."""
    return (lambda: tensor) if isinstance(tensor, torch.nn.Parameter) else weakref.ref(tensor)


def _unusual_context() -> bool:
    """Whether dispatch modes or functorch transforms would see, or wrap, the recorder's own operations."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.peek_interpreter_stack() is not None


def _layout_or_unknown(layouts: Layouts, tensor: torch.Tensor) -> Layout:
    try:
        return layouts.of_tensor(tensor)
    except Exception:  # a subclass that does not even tell its shape
        return layouts.of_other(tensor)
