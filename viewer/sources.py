"""What of a run can be looked at: each dump, all dumps of a rank at once, or its ring; and the records in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recorder.errors import DumpError
from recorder.schema import RunInfo, TriggerKind
from viewer.columns import Records
from viewer.runs import DumpFile, RingFile, Run, first_overflow, kind_of, load
from viewer.tables import plural

MOST_RECORDS = 2_000_000
"""Beyond this, all dumps of a rank are not opened together unless a reader asks for it."""


@dataclass(frozen=True)
class Source:
    """Files of one rank whose records are shown together. name: its name in a link; label: for a reader."""

    name: str
    label: str
    files: tuple[DumpFile | RingFile, ...]

    @property
    def stamp(self) -> tuple[tuple[str, float, int], ...]:
        """(path, mtime, size) of each file: the same records as long as this is the same."""
        return tuple((str(file.path), file.mtime, file.size) for file in self.files)


def sources(run: Run) -> list[Source]:
    """All sources of a run: first what joins several dumps, then each dump and ring, oldest first."""
    ranks = sorted({dump.info.rank for dump in run.dumps})
    joined = [_joined(run, rank, len(ranks) > 1) for rank in ranks]
    single = [Source(dump.path.name, dump_label(dump, len(ranks) > 1), (dump,)) for dump in run.dumps]
    rings = [Source(ring.path.name, f"live ring {ring.path.name}", (ring,)) for ring in run.rings]
    return [source for source in joined if len(source.files) > 1] + single + rings


def run_names(runs: Sequence[Run]) -> dict[str, Run]:
    """A name for each run: its id, and where several have the same one, its directory too."""
    counts = Counter(run.run_id for run in runs)
    return {run.run_id if counts[run.run_id] == 1 else f"{run.run_id} in {run.directory}": run for run in runs}


def chosen_source(run: Run, name: str) -> Source | None:
    """The source of that name; else the one that says most: the first overflow, all dumps, the last dump, the ring."""
    found = sources(run)
    named = next((source for source in found if source.name == name), None)
    if named is not None or not found:
        return named
    overflow = first_overflow(run)
    if overflow is not None:
        return next(source for source in found if source.files == (overflow,))
    joined = found[0]
    if len(joined.files) > 1 and _rows(joined) <= MOST_RECORDS:
        return joined
    return next((source for source in reversed(found) if isinstance(source.files[0], DumpFile)), found[-1])


def load_source(source: Source) -> tuple[Records, RunInfo]:
    """The records of all its files, each once, and what they say of their run together.

    Raises:
        DumpError: a file is not readable as a dump or ring.
    """
    loaded = [(file, *load(file)) for file in source.files]
    for file, table, _ in loaded:
        _check(file, table)
    infos = [info for _, _, info in loaded]
    if len(loaded) == 1:
        return Records(loaded[0][1]), infos[0]
    return Records.of_many(table for _, table, _ in loaded), _together(infos)


def dump_label(dump: DumpFile, with_rank: bool = False) -> str:
    """A dump for a reader: `overflow, batch 12, rank 0`."""
    trigger = dump.info.trigger
    kind = (kind_of(dump) or "dump").replace("_", " ")
    batch = "" if trigger is None or trigger.batch is None else f", batch {trigger.batch}"
    return f"{kind}{batch}" + (f", rank {dump.info.rank}" if with_rank else "")


def _joined(run: Run, rank: int, several: bool) -> Source:
    files = tuple(dump for dump in run.dumps if dump.info.rank == rank)
    of_rank = f" of rank {rank}" if several else ""
    return Source(f"all-rank{rank:04d}", f"all {plural(len(files), 'dump')}{of_rank}", files)


def _rows(source: Source) -> int:
    return sum(file.num_rows for file in source.files if isinstance(file, DumpFile))


def _check(file: DumpFile | RingFile, table: object) -> None:
    try:
        Records.check(table)
    except ValueError as error:
        raise DumpError(file.path, str(error)) from None


def _together(infos: list[RunInfo]) -> RunInfo:
    """The last word of each; limits and warnings of all; the trigger only if it is an overflow."""
    overflow = TriggerKind.OVERFLOW.value
    trigger = next((one.trigger for one in infos if one.trigger and one.trigger.kind == overflow), infos[-1].trigger)
    warnings = {(w.kind, w.batch, w.phase, w.module, w.role, w.key): w for one in infos for w in one.warnings}
    batches = {batch.batch: batch for one in infos for batch in one.batches}
    return replace(
        infos[-1],
        trigger=trigger,
        warnings=tuple(warnings.values()),
        batches=tuple(batches[number] for number in sorted(batches)),
        finfo={dtype: limits for one in infos for dtype, limits in one.finfo.items()},
    )
