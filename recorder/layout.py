"""What a value is, before its numbers: dtype, shape, device and number of elements as plain data."""

from __future__ import annotations

from typing import Any

import torch

from recorder.compiled import Opaque
from recorder.records import Layout
from recorder.schema import DtypeLimits


class Layouts:
    """Makes each distinct layout once: a run has few of them and asks for them on every call."""

    def __init__(self) -> None:
        self._tensors: dict[Any, Layout] = {}
        self._others: dict[str, Layout] = {}
        self.finfo: dict[str, DtypeLimits] = {}

    def of_tensor(self, tensor: torch.Tensor) -> Layout:
        """The layout of any tensor; an element of a packed dtype (fp4) counts, not its byte."""
        try:
            return self._tensors[tensor.shape, tensor.dtype, tensor.device]
        except (KeyError, TypeError, RuntimeError):
            return self._make(tensor)

    def of_other(self, value: Any) -> Layout:
        """The layout of a non-tensor: the name of its Python type."""
        name = value.type_name if isinstance(value, Opaque) else type(value).__name__
        layout = self._others.get(name)
        if layout is None:
            layout = self._others[name] = Layout(name, None, None, None)
        return layout

    def _make(self, tensor: torch.Tensor) -> Layout:
        dtype = dtype_name(tensor.dtype)
        layout = Layout(dtype, _shape(tensor), str(tensor.device), _numel(tensor))
        if dtype not in self.finfo:
            limits = dtype_limits(tensor.dtype)
            if limits is not None:
                self.finfo[dtype] = limits
        if type(tensor.shape) is torch.Size and not tensor.is_nested:
            self._tensors[tensor.shape, tensor.dtype, tensor.device] = layout
        return layout


def dtype_name(dtype: torch.dtype) -> str:
    """ "float16" for torch.float16."""
    return str(dtype).removeprefix("torch.")


def dtype_limits(dtype: torch.dtype) -> DtypeLimits | None:
    """`torch.finfo` as plain data; None for dtypes that have none."""
    try:
        info = torch.finfo(dtype)
        return DtypeLimits(
            float(info.max),
            float(info.smallest_normal),
            smallest_subnormal(dtype),
            float(info.eps),
            int(info.bits),
        )
    except (TypeError, RuntimeError, NotImplementedError):
        return None


def smallest_subnormal(dtype: torch.dtype) -> float:
    """smallest_normal times eps (IEEE 754, section 3.4); complex dtypes answer for their parts."""
    info = torch.finfo(dtype)
    return float(info.smallest_normal) * float(info.eps)


def _shape(tensor: torch.Tensor) -> str:
    if tensor.is_nested and tensor.layout == torch.strided:
        return str(tuple(tuple(part.shape) for part in tensor.unbind()))
    return str(tuple(tensor.shape))


def _numel(tensor: torch.Tensor) -> int | None:
    packed = 2 if tensor.dtype == getattr(torch, "float4_e2m1fn_x2", None) else 1
    try:
        return int(tensor.numel()) * packed
    except (RuntimeError, TypeError, ValueError):
        return None
