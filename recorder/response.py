"""What happens when something is found: the dump, then the raise, the warning or the user's callback."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from recorder.capture import Capture
from recorder.errors import OverflowDetected
from recorder.front_end import FrontEnd, place_text
from recorder.guard import Guard
from recorder.scaling import LossScaling
from recorder.schema import Trigger, TriggerKind
from recorder.settings import OverflowAction
from recorder.spill import Spiller, place_of
from recorder.stream import Found, FrameStream
from recorder.triggers import TriggerGate


class Response:
    """Turns findings into triggers, and triggers into what `on_overflow` asks for. `detecting` can be switched."""

    def __init__(
        self,
        action: OverflowAction,
        guard: Guard,
        stream: FrameStream,
        spiller: Spiller,
        scaling: LossScaling,
        front_end: FrontEnd,
        capture: Callable[[], Capture],
    ) -> None:
        self.detecting = action != "ignore"
        self._action = action
        self._guard = guard
        self._stream = stream
        self._spiller = spiller
        self._scaling = scaling
        self._front_end = front_end
        self._capture = capture
        self._gate = TriggerGate(always=action == "raise")
        self._until_forward_ends: list[Trigger] = []

    def begin_batch(self, *, detecting: bool) -> None:
        self.detecting = detecting and self._action != "ignore"
        self._gate.begin_batch()

    def act(self) -> None:
        """Answer all findings so far. One whose frame is still open comes again when that frame ends."""
        for found in self._stream.take_findings():
            if not self.detecting:
                continue
            if found.finding.record.expected:
                self._scaling.note_bad_gradient(found)
            elif found.finding.owner is found.owner:
                self.trip(found)
            elif self._action == "raise" and self._capture().is_open(found.finding.owner):
                self.trip(self._close_early(found))

    def trip(self, found: Found) -> None:
        """Dump and announce a finding, unless it is no news."""
        record = found.finding.record
        trigger = place_of(TriggerKind.OVERFLOW, found.frame, record.role.value, record.key)
        if not self.detecting or not self._gate.admits(trigger, is_origin=found.finding.is_origin):
            return
        if self._action == "raise":
            self._capture().emit_open_frames()
            self._stream.take_findings()
            self._respond(trigger)
        elif self._capture().is_root_open():
            self._until_forward_ends.append(trigger)
        else:
            self._respond(trigger)

    def end_forward(self) -> None:
        """Answer the triggers of this forward that did not end it: their dumps show how far it spread."""
        triggers, self._until_forward_ends = self._until_forward_ends, []
        for trigger in triggers:
            self._respond(trigger)

    def _respond(self, trigger: Trigger) -> None:
        self._announce(trigger, self._spiller.spill(trigger))

    def _close_early(self, found: Found) -> Found:
        """Write the frames that are still open, among them the owner of the finding."""
        frames = self._capture().emit_open_frames()
        self._stream.take_findings()
        owner = found.finding.owner
        return found._replace(owner=owner, frame=frames[owner]) if owner in frames else found

    def _announce(self, trigger: Trigger, dump: Path | None) -> None:
        action = self._action
        if callable(action):
            self._guard.call_user(lambda: action(trigger))
            return
        message = self._message(trigger, dump)
        if action == "raise":
            raise OverflowDetected(message, trigger, dump)
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _message(self, trigger: Trigger, dump: Path | None) -> str:
        try:
            return self._front_end.overflow(trigger, dump)
        except Exception:  # a dump that can't be read back, or a diagnosis that fails: it went bad all the same
            shown = f"The dump tells the story: overflight report {dump}"
            return f"{place_text(trigger)}\n{shown}"
