"""The module tree of a dump: every module of the model, also those that never ran, with what was seen in each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from recorder.schema import RunInfo
from viewer.columns import Floats, Ints, Records
from viewer.filters import matches


@dataclass(frozen=True)
class Node:
    """One module, and in its numbers all modules below it.

    name: its full path; label: the last part of it; parent: the path of the node above, None for the root.
    records: how many there are; flagged: how many of them are non-finite and not expected; headroom: the least, in
    binades, nan where nothing was measured; origin: whether the first bad value was born in this very module.
    """

    name: str
    label: str
    module_class: str
    parent: str | None
    depth: int
    records: int
    flagged: int
    headroom: float
    origin: bool


def tree(records: Records, info: RunInfo, origin: str | None = None) -> list[Node]:
    """All modules, each after its parent, in the order of the model. origin: the module that the verdict names."""
    classes = _classes(records, info)
    order = {name: i for i, name in enumerate(classes)}
    counts, flagged, headroom = _numbers(records, info, order)
    children = _children(classes)
    totals = _with_descendants(classes, order, counts, flagged, headroom)
    return [_node(name, depth, classes, totals[order[name]], origin) for name, depth in _walk("", 0, children)]


def visible(nodes: list[Node], name: str) -> list[Node]:
    """The nodes that a name filter lets pass, with the nodes above them; all without a filter."""
    if not name.strip():
        return nodes
    passing = {node.name for node in nodes if matches(name, node.name, node.module_class)}
    kept = passing | {above for found in passing for above in _above(found)}
    return [node for node in nodes if node.name in kept]


_Totals = tuple[int, int, float]


def _node(name: str, depth: int, classes: dict[str, str], totals: _Totals, origin: str | None) -> Node:
    parent = _parent(name)
    label = name.rpartition(".")[2] or "(the model)"
    return Node(name, label, classes[name], parent, depth, *totals, origin=name == origin)


def _classes(records: Records, info: RunInfo) -> dict[str, str]:
    """Class of each module, in the order of the model: what the table says, then what only the records know."""
    known = {one.name: one.module_class for one in sorted(info.modules, key=lambda one: one.order)}
    seen = {"": "", **known, **_recorded_classes(records, set(known))}
    for name in list(seen):
        for above in _above(name):
            seen.setdefault(above, "")
    return seen


def _recorded_classes(records: Records, known: set[str]) -> dict[str, str]:
    modules, classes = records.texts("module"), records.texts("module_class")
    found, first = np.unique(records.codes("module"), return_index=True)
    codes = records.codes("module_class")[first]
    pairs = {modules[m]: classes[c] if c >= 0 else "" for m, c in zip(found, codes, strict=True) if m >= 0}
    return {name: module_class for name, module_class in pairs.items() if name not in known}


def _numbers(records: Records, info: RunInfo, order: dict[str, int]) -> tuple[Ints, Ints, Floats]:
    """Records, bad records and least headroom of each module by itself. Arrays of shape (modules,)."""
    lookup = np.array([*(order.get(name, 0) for name in records.texts("module")), 0])
    module = lookup[records.codes("module")]
    bad = records.truth("flagged") & ~records.truth("expected")
    least = np.full(len(order), np.inf)
    headroom = records.headroom(info.finfo)
    measured = np.isfinite(headroom)
    np.minimum.at(least, module[measured], headroom[measured])
    return np.bincount(module, minlength=len(order)), np.bincount(module[bad], minlength=len(order)), least


def _with_descendants(
    names: Iterable[str], order: dict[str, int], counts: Ints, flagged: Ints, headroom: Floats
) -> list[_Totals]:
    totals = [(int(c), int(f), float(h)) for c, f, h in zip(counts, flagged, headroom, strict=True)]
    own = list(totals)
    for name in names:
        count, bad, least = own[order[name]]
        for above in _above(name):
            c, f, h = totals[order[above]]
            totals[order[above]] = (c + count, f + bad, min(h, least))
    return [(c, f, h if np.isfinite(h) else float("nan")) for c, f, h in totals]


def _children(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        parent = _parent(name)
        if parent is not None:
            found.setdefault(parent, []).append(name)
    return found


def _walk(name: str, depth: int, children: dict[str, list[str]]) -> Iterator[tuple[str, int]]:
    yield name, depth
    for child in children.get(name, ()):
        yield from _walk(child, depth + 1, children)


def _parent(name: str) -> str | None:
    return name.rpartition(".")[0] if name else None


def _above(name: str) -> Iterator[str]:
    """All paths above a module, the nearest first, the root last."""
    while name:
        name = name.rpartition(".")[0]
        yield name
