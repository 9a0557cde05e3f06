"""What a recorder says to its user. The drop-in says it in the seed's words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from recorder.dump import read_dump, to_frame
from recorder.schema import Trigger
from recorder.verdict import headline


def place_text(trigger: Trigger) -> str:
    """One line for a trigger without its records."""
    tensor = f"{trigger.role} {trigger.key}".rstrip()
    return f"inf or nan in {tensor} of {trigger.module or 'the root'}, {trigger.phase}, batch {trigger.batch}"


class FrontEnd:
    """The Recorder's own words."""

    def overflow(self, trigger: Trigger, dump: Path | None) -> str:
        """The message of OverflowDetected and of the warning: what and where in one line, the command in another.

        `dump` is None when it could not be written.
        """
        if dump is None:
            return f"{place_text(trigger)}\nThe dump could not be written: see the warning before this."
        table, info = read_dump(dump)
        said = headline(to_frame(table), dataclasses.replace(info, trigger=trigger))
        return f"{said}\nThe dump tells the story: overflight report {dump}"

    def traced(self, dump: Path) -> None:
        """A traced batch is on disk."""

    def batch_limit(self, batches: int, limit: int, run_dir: Path) -> str:
        """The message of BatchLimitReached."""
        return f"stopped after {batches} batches, as abort_after_batch={limit} asks; the run is in {run_dir}"
