"""Follows non-finite values through the forward pass and names the place where they first appeared.

A bad input is only a suspect while the module that received it runs: the module may absorb it (NaN targets that
a loss masks out). It becomes a finding when it spreads, and then the outermost module that received it is named,
for the modules inside merely pass it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recorder.frames import OpenFrame
from recorder.passed_masks import Passed, PassedMasks
from recorder.policy import Policy
from recorder.records import Frame, Statistics, TensorRecord
from recorder.schema import Role, Suppressed

_WEIGHTS = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE)


@dataclass(frozen=True)
class Finding:
    """The first bad tensor of a chain, and the frame that owns it: `frame` where that had ended before."""

    owner: OpenFrame
    record: TensorRecord
    is_origin: bool = False
    frame: Frame | None = None


@dataclass(frozen=True)
class _Suspect:
    owner: OpenFrame
    record: TensorRecord
    is_data: bool
    frame: Frame | None = None  # where the owner has ended


class Judge:
    """Judges frames in the order in which they ran. One judge per recorder; frames of one thread at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._suspects: list[_Suspect] = []
        self._bad_outputs: list[Statistics] = []
        self._masks = PassedMasks()
        self._suppressed: dict[tuple[str, str, str, str], int] = {}

    @property
    def suppressed(self) -> tuple[Suppressed, ...]:
        return tuple(Suppressed(*place, count) for place, count in self._suppressed.items())

    def begin_batch(self) -> None:
        self._suspects.clear()
        self._bad_outputs.clear()
        self._masks.begin_batch()

    def scan(self, owner: OpenFrame, frame: Frame) -> tuple[Frame, Finding | None]:
        """Judge weights and state that were looked at outside a module call: before the batch, or after a step."""
        frame = self._mark_expected(owner, frame)
        bad = _abnormal(frame.records, *_WEIGHTS)
        return frame, Finding(owner, _first_to_go_bad(bad)) if bad else None

    def enter(self, owner: OpenFrame, bad_weights_around: Sequence[TensorRecord] = ()) -> None:
        """Note the bad inputs of a module call that begins, and before them the bad weights of the module around."""
        for record in bad_weights_around:
            if owner.parent is not None and not self._rule(owner.parent, record, []):
                self._suspects.append(_Suspect(owner.parent, record, False))
        for record in owner.inputs:
            if not record.statistics.flagged:
                continue
            rule = self._rule(owner, record, [])
            if rule is None:
                self._suspect(owner, record)
            else:
                self._masks.note(owner, record, rule)

    def _suspect(self, owner: OpenFrame, record: TensorRecord) -> None:
        is_data = self._is_data(owner, record)
        if not is_data and not self._is_known(record) and all(s.is_data for s in self._suspects):
            passed = self._masks.behind_input(owner, record)
            if passed is not None:
                self._accuse(passed)
        self._suspects.append(_Suspect(owner, record, is_data))

    def _accuse(self, passed: Passed) -> None:
        """What was taken for a mask is a fault."""
        self._bad_outputs.append(passed.record.statistics)
        self._suspects.insert(0, _Suspect(passed.owner, passed.record, False, passed.frame))

    def exit(self, owner: OpenFrame, frame: Frame) -> tuple[Frame, Finding | None]:
        """Mark what is expected and whether the frame is an origin; the finding that its end brings to light."""
        frame = self._mark_expected(owner, frame)
        bad_outputs = _abnormal(frame.records, Role.OUTPUT)
        self._bad_outputs += [record.statistics for record in bad_outputs]
        self._tell_parent(owner, frame, bool(bad_outputs))
        is_origin = (
            bool(bad_outputs) and not owner.child_flagged and not _abnormal(frame.records, Role.INPUT, *_WEIGHTS)
        )
        passed = self._masks.behind_output(owner, bad_outputs) if is_origin else None
        if passed is not None:
            self._accuse(passed)
            is_origin = False
            frame = _without_excuse(frame, passed)
        frame = frame._replace(origin=is_origin)
        finding = self._finding(owner, frame, bad_outputs, is_origin)
        self._suspects = [s for s in self._suspects if s.owner is not owner and s.frame is None]
        self._masks.close(owner, frame)
        return frame, finding

    def _finding(
        self, owner: OpenFrame, frame: Frame, bad_outputs: list[TensorRecord], is_origin: bool
    ) -> Finding | None:
        certain = next((s for s in self._suspects if not s.is_data), None)
        if certain is not None:
            return Finding(certain.owner, certain.record, frame=certain.frame)
        bad_weights = _abnormal(frame.records, *_WEIGHTS)
        if bad_weights:
            return Finding(owner, bad_weights[0])
        if not bad_outputs:
            return None
        if self._suspects and not is_origin:
            first = self._suspects[0] = replace(self._suspects[0], is_data=False)
            return Finding(first.owner, first.record)
        return Finding(owner, bad_outputs[0], is_origin)

    def _tell_parent(self, owner: OpenFrame, frame: Frame, bad: bool) -> None:
        if owner.parent is None:
            return
        owner.parent.child_flagged |= bad
        expected = [r for r in frame.records if r.role is Role.OUTPUT and r.expected]
        owner.parent.child_outputs = (owner.parent.child_outputs or []) + expected

    def _is_data(self, owner: OpenFrame, record: TensorRecord) -> bool:
        """Whether a bad input came with the batch itself: those may be meant, and be masked out further on."""
        if owner.plan.is_root:
            return True
        return bool(record.statistics.num_nan) and any(s.is_data for s in self._suspects)

    def count_suppressed(self, rule: str, module: str, record: TensorRecord) -> None:
        place = (rule, module, record.role.value, record.key)
        self._suppressed[place] = self._suppressed.get(place, 0) + 1

    def _mark_expected(self, owner: OpenFrame, frame: Frame) -> Frame:
        """The frame with its legitimate non-finite records marked, and counted."""
        beside = [r for r in frame.records if r.role is not Role.OUTPUT] + (owner.child_outputs or [])
        records = []
        for record in frame.records:
            rule = self._rule(owner, record, beside) if record.statistics.flagged else None
            if rule is not None:
                record = record._replace(expected=True)
                self.count_suppressed(rule, frame.module, record)
                if record.role is not Role.INPUT:  # those were noted when the call began
                    self._masks.note(owner, record, rule)
            records.append(record)
        return frame._replace(records=tuple(records))

    def _rule(self, owner: OpenFrame, record: TensorRecord, beside: list[TensorRecord]) -> str | None:
        if record.role is Role.INPUT and self._is_known(record):
            return None
        return self._policy.rule(owner.path, record, beside, _is_trainable(owner, record))

    def _is_known(self, record: TensorRecord) -> bool:
        """Whether it is the output of a module before, found abnormal there."""
        return any(known is record.statistics for known in self._bad_outputs)


def _abnormal(records: tuple[TensorRecord, ...], *roles: Role) -> list[TensorRecord]:
    return [r for r in records if r.role in roles and r.statistics.flagged and not r.expected]


def _without_excuse(frame: Frame, passed: Passed) -> Frame:
    excused = passed.record.statistics
    return frame._replace(
        records=tuple(r._replace(expected=False) if r.statistics is excused else r for r in frame.records)
    )


def _first_to_go_bad(bad: list[TensorRecord]) -> TensorRecord:
    """A step makes the state from the gradient, and the parameter from its state: where both are bad, it was state."""
    first = bad[0]
    state = (r for r in bad if r.role is Role.OPTIMIZER_STATE and r.key.startswith(f"{first.key}."))
    return next(state, first)


def _is_trainable(owner: OpenFrame, record: TensorRecord) -> bool:
    if record.role is not Role.PARAMETER:
        return False
    # items: a ScriptModule's parameters are no dict
    return any(name == record.key and p is not None and p.requires_grad for name, p in owner.module._parameters.items())
