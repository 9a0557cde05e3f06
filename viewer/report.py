"""What one run has to say: its verdict, its warnings and its facts, gathered once, and as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from recorder.dump import read_table, to_frame
from recorder.errors import DumpError
from recorder.schema import DUMP_SCHEMA, RunInfo, SilentWarning, Suppressed, Trigger, TriggerKind
from recorder.verdict import diagnose
from viewer.runs import DumpFile, RingFile, Run, first_overflow, load
from viewer.sources import Source, chosen_source, load_source, sources
from viewer.tables import plural


@dataclass(frozen=True)
class Report:
    """One run, judged.

    source: the files that give the verdict, None when the run wrote none; table: their rows; records: the same.
    origin: where it was born, with the keys of a trigger; None when nothing was.
    """

    run: Run
    source: Source | None
    info: RunInfo
    table: pa.Table
    records: pd.DataFrame
    lines: tuple[str, ...]
    origin: dict[str, Any] | None
    warnings: tuple[SilentWarning, ...]

    @property
    def trigger(self) -> Trigger | None:
        return self.info.trigger if self.source else None

    @property
    def overflowed(self) -> bool:
        """Whether something non-finite was born that no rule expected."""
        kind = self.trigger.kind if self.trigger else None
        return kind == TriggerKind.OVERFLOW.value or self.origin is not None

    @property
    def suppressed(self) -> tuple[Suppressed, ...]:
        return (self.run.info.suppressed if self.run.info else ()) or self.info.suppressed


def build_report(run: Run) -> Report:
    """Judge a run by its first overflow dump, else by its first file with something non-finite, else by all its dumps.

    Raises:
        DumpError: a file that gives the verdict can't be read, or there is nothing of this run to read.
    """
    source = _source(run)
    if source is None:
        return _report_without_records(run)
    found, info = load_source(source)
    records = to_frame(found.table)
    verdict = diagnose(records, info)
    return Report(run, source, info, found.table, records, verdict.lines, verdict.origin, _warnings(run, info))


def report_json(report: Report) -> dict[str, Any]:
    """The object that `overflight report --format json` prints."""
    return {
        "run": _facts(report),
        "trigger": None if report.trigger is None else dataclasses.asdict(report.trigger),
        "origin": report.origin,
        "verdict": "\n".join(report.lines),
        "warnings": [_warning_json(warning) for warning in report.warnings],
        "dumps": [str(dump.path) for dump in report.run.dumps],
    }


def _source(run: Run) -> Source | None:
    """What the app opens first too, but for something non-finite in a dump that is not an overflow's."""
    if first_overflow(run) is None:
        for source in sources(run):
            if len(source.files) == 1 and _has_unexpected(source.files[0]):
                return source
    return chosen_source(run, "")


def _has_unexpected(file: DumpFile | RingFile) -> bool:
    """Whether a record is flagged and no rule expected it; reads two boolean columns."""
    is_dump = isinstance(file, DumpFile)
    table = read_table(file.path, columns=["flagged", "expected"]) if is_dump else load(file)[0]
    return bool(pc.any(pc.and_not(table["flagged"], table["expected"])).as_py())


def _report_without_records(run: Run) -> Report:
    if run.info is None:
        raise DumpError(*run.problems[0]) if run.problems else DumpError(run.directory, "a directory without dumps")
    warnings = _warnings(run, run.info)
    said = f"No overflow: this run wrote no dump. {plural(len(warnings), 'warning')}."
    return Report(run, None, run.info, DUMP_SCHEMA.empty_table(), pd.DataFrame(), (said,), None, warnings)


def _warnings(run: Run, info: RunInfo) -> tuple[SilentWarning, ...]:
    """Each warning once, by batch; what was said last of one place and batch stands."""
    told = [info, *(dump.info for dump in run.dumps), *([run.info] if run.info else [])]
    once = {(w.kind, w.batch, w.phase, w.module, w.role, w.key): w for one in told for w in one.warnings}
    return tuple(sorted(once.values(), key=lambda warning: warning.batch))


def _warning_json(warning: SilentWarning) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(warning).items() if key != "numbers"}


def _facts(report: Report) -> dict[str, Any]:
    info = report.info
    latest = report.run.info or info
    return {
        "run_id": report.run.run_id,
        "directory": str(report.run.directory),
        "ranks": sorted({dump.info.rank for dump in report.run.dumps} or {info.rank}),
        "world_size": info.world_size,
        "start_time": info.start_time,
        "sources": [str(file.path) for file in report.source.files] if report.source else [],
        "records": len(report.records),
        "evicted": info.evicted,
        "suppressed": [dataclasses.asdict(one) for one in report.suppressed],
        "overhead": dataclasses.asdict(latest.overhead) if latest.overhead else None,
        "batches": [dataclasses.asdict(one) for one in latest.batches or info.batches],
        "settings": info.settings,
        "versions": info.versions,
        "problems": [{"path": str(path), "text": text} for path, text in report.run.problems],
    }
