"""Dumps that have been read and judged, kept for all readers of one server while their files stay the same."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recorder.dump import to_frame
from recorder.schema import RunInfo
from recorder.verdict import diagnose
from viewer.columns import Records
from viewer.facts import Fact, all_facts
from viewer.query import Choices, choices
from viewer.runs import RingFile
from viewer.sources import Source, load_source
from viewer.tree import Node, tree

ROOM = 2
"""How many sources are kept: of a million records each takes some 150 MB."""

LOOK_AGAIN = 5.0
"""Seconds after which directories and living rings are looked at again."""

Stamp = tuple[tuple[str, float, int], ...]


@dataclass(frozen=True)
class Loaded:
    """One source, read and judged. origin: where it was born, as the verdict says; None when nothing was."""

    records: Records
    info: RunInfo
    lines: tuple[str, ...]
    origin: dict[str, Any] | None
    nodes: list[Node]
    choices: Choices
    facts: list[Fact]


class Shelf:
    """Keeps the last few of what is dear to make; one at a time is made."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: OrderedDict[Stamp, Loaded] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, stamp: Stamp) -> bool:
        return stamp in self._kept

    def get(self, stamp: Stamp, make: Callable[[], Loaded]) -> Loaded:
        """What was kept under this stamp, else what `make` makes."""
        with self._lock:
            if stamp not in self._kept:
                while len(self._kept) >= self._room:
                    self._kept.popitem(last=False)
                self._kept[stamp] = make()
            self._kept.move_to_end(stamp)
            return self._kept[stamp]


_shelf = Shelf(ROOM)


def loaded(source: Source) -> Loaded:
    """The records of a source, and what they say.

    Raises:
        DumpError: a file of it is not readable.
    """
    return _shelf.get(_stamp(source), lambda: _load(source))


def is_new(source: Source) -> bool:
    """Whether its records are still to be read, which may take a while."""
    return _stamp(source) not in _shelf


def _stamp(source: Source) -> Stamp:
    """Changes with the files; and with time for a ring, whose file may be written to without a new date."""
    live = any(isinstance(file, RingFile) for file in source.files)
    return (*source.stamp, ("", time.time() // LOOK_AGAIN, 0)) if live else source.stamp


def _load(source: Source) -> Loaded:
    records, info = load_source(source)
    verdict = diagnose(to_frame(records.table), info)
    nodes = tree(records, info, verdict.origin["module"] if verdict.origin else None)
    return Loaded(records, info, verdict.lines, verdict.origin, nodes, choices(records), all_facts(records, info))
