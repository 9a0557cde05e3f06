"""What a reader wants to know of a dump before looking at it: short labels and values. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from recorder.schema import RunInfo
from viewer.columns import Records
from viewer.report_text import place_text
from viewer.tables import plural
from viewer.tree import Node


@dataclass(frozen=True)
class Fact:
    """One line of facts. detail: what is said beside the value in small print."""

    label: str
    value: str
    detail: str = ""


def key_facts(records: Records, info: RunInfo, nodes: list[Node]) -> list[Fact]:
    """The few that always stand above the picture."""
    return [_trigger(info), _extent(records, info), _headroom(records, info, nodes), _warned(info), _cost(info)]


def all_facts(records: Records, info: RunInfo) -> list[Fact]:
    """Everything else that the dump says of its run."""
    return [*_run_facts(info), *_record_facts(records, info), *_setting_facts(info)]


def _trigger(info: RunInfo) -> Fact:
    if info.trigger is None:
        return Fact("Trigger", "none")
    one = info.trigger
    when = ", ".join(text for text in ("" if one.batch is None else f"batch {one.batch}", one.phase or "") if text)
    return Fact("Trigger", one.kind.replace("_", " "), place_text(one.module, one.role, one.key) or when)


def _extent(records: Records, info: RunInfo) -> Fact:
    batch = records.whole("batch")
    if not len(batch):
        return Fact("Records", "0")
    first, last = int(batch.min()), int(batch.max())
    batches = f"batch {first}" if first == last else f"batches {first} to {last}"
    evicted = f", {info.evicted:,} evicted before" if info.evicted else ""
    return Fact("Records", f"{len(records):,}", batches + evicted)


def _headroom(records: Records, info: RunInfo, nodes: list[Node]) -> Fact:
    measured = [node for node in nodes if not math.isnan(node.headroom)]
    if not measured:
        return Fact("Least headroom", "-")
    least = min(node.headroom for node in measured)
    deepest = max((node for node in measured if node.headroom == least), key=lambda node: node.depth)
    return Fact("Least headroom", f"{least:.1f} binades", deepest.name or "the model")


def _warned(info: RunInfo) -> Fact:
    kinds = list(dict.fromkeys(one.kind for one in info.warnings))
    suppressed = sum(one.count for one in info.suppressed)
    expected = f"{suppressed:,} expected non-finite" if suppressed else ""
    return Fact("Warnings", f"{len(info.warnings):,}", ", ".join([*kinds[:3], *([expected] if expected else [])]))


def _cost(info: RunInfo) -> Fact:
    cost = info.overhead
    if cost is None:
        return Fact("Recorder's cost", "-", "not measured")
    return Fact("Recorder's cost", f"{cost.share:.1%}", f"{cost.seconds:.2f} s of {cost.batch_seconds:.1f} s")


def _run_facts(info: RunInfo) -> Iterator[Fact]:
    yield Fact("Run", info.run_id)
    yield Fact("Rank", f"{info.rank} of {info.world_size}")
    yield Fact("Started", started_text(info))
    for name, version in info.versions.items():
        yield Fact(name, str(version))


def _record_facts(records: Records, info: RunInfo) -> Iterator[Fact]:
    yield Fact("Modules in the model", f"{len(info.modules):,}")
    yield Fact("Modules recorded", f"{len(records.used('module')):,}")
    yield Fact("Dtypes", ", ".join(records.used("dtype")))
    yield Fact("Devices", ", ".join(records.used("device")))
    yield Fact("Evicted", plural(info.evicted, "record"))


def _setting_facts(info: RunInfo) -> Iterator[Fact]:
    for name, value in info.settings.items():
        yield Fact(name, str(value))


def started_text(info: RunInfo) -> str:
    """`2025-06-15 15:06:40 UTC` from ISO 8601; what can't be read stays as it is."""
    text = info.start_time.replace("T", " ").partition(".")[0]
    return text.removesuffix("+00:00").removesuffix("Z") + (" UTC" if text else "")
