"""Reduces any tensor to plain strided floating tensors that hold the same values."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

_FP4 = getattr(torch, "float4_e2m1fn_x2", None)

# OCP Microscaling Formats v1.0, table 5: the sixteen values of E2M1, by bit pattern.
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

REDUCIBLE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes whose min, max and sums every backend computes as they are."""


class Parts(NamedTuple):
    """Strided tensors of a REDUCIBLE or convertible dtype, and how many zeros a sparse layout leaves out."""

    tensors: tuple[torch.Tensor, ...]
    implicit_zeros: int


def strided_parts(tensor: torch.Tensor) -> Parts | None:
    """The stored values of `tensor`; None where there are none to read (meta, fake tensors).

    A DTensor answers for its local shard: the other shards are in the dumps of the other ranks.
    """
    plain = _local(_without_functorch(tensor))
    if plain.device.type == "meta" or _is_fake(plain):
        return None
    if plain.is_nested:
        return Parts(tuple(plain.unbind()), 0)
    if plain.layout != torch.strided:
        return _sparse_parts(plain)
    if plain.is_quantized:
        plain = plain.dequantize()
    return Parts((plain,), 0)


def to_reducible(piece: torch.Tensor) -> torch.Tensor:
    """The same values in a dtype that can be reduced. Complex values become magnitudes (NaN if either part is)."""
    if piece.dtype in REDUCIBLE:
        return piece
    if piece.dtype == _FP4:
        return _decode_fp4(piece)
    if piece.dtype.is_complex:
        return _magnitude(piece)
    if piece.dtype.is_floating_point:
        return piece.to(torch.float32)
    return piece.to(_widest(piece.device))


def smallest_normal(dtype: torch.dtype) -> float:
    """Below this an element of the dtype is subnormal or zero; for what has no subnormals, the least above zero."""
    if not dtype.is_floating_point:
        return math.ulp(0.0)
    try:
        return float(torch.finfo(dtype).smallest_normal)
    except (TypeError, RuntimeError):
        return 1.0  # E2M1: the one subnormal is 0.5


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _magnitude(piece: torch.Tensor) -> torch.Tensor:
    # float64, since |3e38 + 3e38i| does not fit the float32 of its parts
    parts = torch.view_as_real(piece.resolve_conj()).to(_widest(piece.device))
    size = torch.hypot(parts[..., 0], parts[..., 1])
    return torch.where(parts.isnan().any(-1), torch.nan, size)


def _decode_fp4(piece: torch.Tensor) -> torch.Tensor:
    packed = piece.view(torch.uint8)
    values = torch.tensor(_FP4_VALUES, device=piece.device)
    return torch.stack((values[(packed & 15).long()], values[(packed >> 4).long()]), -1)


def _sparse_parts(tensor: torch.Tensor) -> Parts:
    if tensor.layout == torch.sparse_coo:
        values = tensor.coalesce().values()
    elif hasattr(torch, "_mkldnn") and tensor.layout == torch._mkldnn:
        return Parts((tensor.to_dense(),), 0)
    else:
        values = tensor.values()
    return Parts((values,), tensor.numel() - values.numel())


def _without_functorch(tensor: torch.Tensor) -> torch.Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    local: torch.Tensor = to_local()
    wait = getattr(local, "wait", None)  # an AsyncCollectiveTensor is read once its collective has ended
    return wait() if wait is not None else local


def _is_fake(tensor: torch.Tensor) -> bool:
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    return type(tensor).__name__ in ("FakeTensor", "FunctionalTensor", "ProxyTensor")
