"""Opens nested arguments and outputs into (key, value) leaves, in a fixed order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

MAX_DEPTH = 32
"""Deeper nesting (or a container that holds itself) becomes one leaf."""

MAX_LEAVES = 4096
"""A list of a million token strings is one argument, not a million records."""

Leaf = tuple[str, Any]


def leaves(value: Any, key: str = "", note: Callable[[str, str], None] | None = None) -> list[Leaf]:
    """All leaves of `value`, each with its key below `key`: "", "0", "0.1", "last_hidden_state".

    Tuples and lists are opened by index, mappings by key, dataclasses by field. Everything else is a leaf.
    `note(key, type name)` is told of every container that is not a tuple, and of empty ones.
    """
    if isinstance(value, torch.Tensor):
        return [(key, value)]
    found: list[Leaf] = []
    _open(value, key, found, note, 0)
    return found


def _open(value: Any, key: str, found: list[Leaf], note: Callable[[str, str], None] | None, depth: int) -> None:
    if isinstance(value, torch.Tensor) or value is None:
        found.append((key, value))
        return
    children = _children(value) if depth < MAX_DEPTH else None
    if not children:
        found.append((key, value))
        return
    if note is not None and not isinstance(value, tuple):
        note(key, type(value).__name__)
    for name, child in children:
        if len(found) >= MAX_LEAVES:
            return
        _open(child, f"{key}.{name}" if key else name, found, note, depth + 1)


def _children(value: Any) -> list[Leaf] | None:
    """The named parts of a container; None for anything else, and for an empty one."""
    if isinstance(value, (tuple, list)):
        return [(str(i), child) for i, child in enumerate(value)]
    if isinstance(value, Mapping):
        return [(str(name), child) for name, child in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name)]
    return None
