"""Where the run is: batch, step, frame number, and whether this batch is recorded."""

from __future__ import annotations

import itertools
import threading


class Clock:
    """Counts batches, steps and frames of one recorder; read by every hook, advanced by the Recorder alone."""

    def __init__(self) -> None:
        self.batch = -1
        self.step = 0
        self.recording = True
        self.lock = threading.RLock()
        self._seq = itertools.count()

    @property
    def current_batch(self) -> int:
        """The batch that frames belong to; modules called before the root first ran belong to batch 0."""
        return max(self.batch, 0)

    def next_seq(self) -> int:
        return next(self._seq)
