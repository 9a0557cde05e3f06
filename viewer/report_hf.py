"""The seed's printed report of a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from recorder.dump import to_frame
from recorder.errors import DumpError
from recorder.schema import TriggerKind
from recorder.text import hf_report
from viewer.runs import DumpFile, RingFile, Run, kind_of, load


def report_hf(run: Run) -> str:
    """What `transformers.debug_utils.DebugUnderflowOverflow` would have printed, rank after rank, and nothing else.

    Raises:
        DumpError: a file of the run can't be read, or it has no records.
    """
    if not run.dumps and not run.rings:
        raise DumpError(run.directory, "this run wrote no dump, so there is nothing to print")
    if not run.dumps:
        return "".join(_printed(ring) for ring in run.rings)
    by_rank = groupby(sorted(run.dumps, key=_printed_order), key=lambda dump: dump.info.rank)
    return "".join(text for _, dumps in by_rank for text in _until_stopped(dumps))


def _until_stopped(dumps: Iterator[DumpFile]) -> Iterator[str]:
    """The texts of one rank's dumps: traced batches go on, the first detection ends the seed's run."""
    for dump in dumps:
        text = _printed(dump)
        yield text
        if text and kind_of(dump) != TriggerKind.TRACED_BATCH.value:
            return


def _printed(source: DumpFile | RingFile) -> str:
    table, info = load(source)
    return hf_report(to_frame(table), info)


def _printed_order(dump: DumpFile) -> tuple[int, float, float]:
    batch = dump.info.trigger.batch if dump.info.trigger else None
    return (dump.info.rank, float("inf") if batch is None else batch, dump.mtime)
