"""Hooks inside torch.compile: an opaque operation that the compiled graph keeps, in its place and order.

A hook that dynamo traces cannot run Python at run time. What it leaves in the graph instead is a call of
`overflight::watch`, which is handed the tensors and calls back. It mutates a tensor of its own, so that no
compiler may drop or reorder it; it adds no graph break and no guard on values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Watched = list[tuple[str, Any]]
"""Keys and values. A non-tensor is an Opaque: the graph knows its type only."""

_SEPARATOR = "\x1f"
_TENSOR = "\x1e"
_ORDER = torch.zeros(1)
_MAX_DEPTH = 8

_callbacks: dict[int, Callable[[Watched], None]] = {}
_tokens = itertools.count()


class Opaque:
    """A value that is no tensor, known by the name of its type."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name


def new_token(callback: Callable[[Watched], None]) -> int:
    """A number by which compiled code finds `callback`; one that was released is passed over in silence."""
    token = next(_tokens)
    _callbacks[token] = callback
    return token


def release(tokens: list[int]) -> None:
    for token in tokens:
        _callbacks.pop(token, None)


def watch(token: int, values: list[tuple[str, Any]]) -> None:
    """Leave a call of the operation in the graph that is being compiled. Traced by dynamo: plain Python only."""
    tensors: list[torch.Tensor] = []
    described: list[str] = []
    for key, value in values:
        _describe(key, value, tensors, described, 0)
    torch.ops.overflight.watch(tensors, _ORDER, token, _SEPARATOR.join(described))


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, is run by torch.compile."""
    optimized = torch._dynamo.eval_frame.OptimizedModule
    return any(isinstance(m, optimized) or m._compiled_call_impl is not None for m in model.modules())


def recompile() -> None:
    """Forget compiled code: what was compiled before hooks were added, or removed, does not look at them again."""
    torch._dynamo.reset()


def is_exporting() -> bool:
    """Whether torch.export traces: an exported program must not hold the recorder's operation."""
    return bool(torch.compiler.is_exporting()) if hasattr(torch.compiler, "is_exporting") else False


def _describe(key: str, value: Any, tensors: list[torch.Tensor], described: list[str], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        described.append(key + _TENSOR)
    elif isinstance(value, (tuple, list)) and len(value) > 0 and depth < _MAX_DEPTH:
        for position, child in enumerate(value):
            _describe(f"{key}.{position}" if key else str(position), child, tensors, described, depth + 1)
    elif isinstance(value, dict) and len(value) > 0 and depth < _MAX_DEPTH:
        for name, child in value.items():
            _describe(f"{key}.{name}" if key else str(name), child, tensors, described, depth + 1)
    else:
        described.append(key + _TENSOR + type(value).__name__)


def _watched(tensors: list[torch.Tensor], _order: torch.Tensor, token: int, described: str) -> None:
    callback = _callbacks.get(token)
    if callback is None:
        return
    remaining = iter(tensors)
    values: Watched = []
    for entry in described.split(_SEPARATOR) if described else []:
        key, _, type_name = entry.partition(_TENSOR)
        values.append((key, Opaque(type_name) if type_name else next(remaining)))
    callback(values)


_library = torch.library.Library("overflight", "DEF")
_library.define(
    "watch(Tensor[] tensors, Tensor(a!) order, int token, str described) -> ()",
    # a replayed CUDA graph would not call back
    tags=tuple(tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None),
)
_library.impl("watch", _watched, "CompositeExplicitAutograd")
torch.library.register_fake("overflight::watch", lambda *_: None, lib=_library)
