"""The seed's printed report of a whole run."""

from __future__ import annotations

from recorder.dump import to_frame
from recorder.errors import DumpError
from recorder.text import hf_report
from viewer.runs import DumpFile, RingFile, Run, load


def report_hf(run: Run) -> str:
    """What `transformers.debug_utils.DebugUnderflowOverflow` would have printed, rank after rank, and nothing else.

    Raises:
        DumpError: a file of the run can't be read, or it has no records.
    """
    sources = sorted(run.dumps, key=_printed_order) or run.rings
    if not sources:
        raise DumpError(run.directory, "this run wrote no dump, so there is nothing to print")
    return "".join(_printed(source) for source in sources)


def _printed(source: DumpFile | RingFile) -> str:
    table, info = load(source)
    return hf_report(to_frame(table), info)


def _printed_order(dump: DumpFile) -> tuple[int, float, float]:
    batch = dump.info.trigger.batch if dump.info.trigger else None
    return (dump.info.rank, float("inf") if batch is None else batch, dump.mtime)
