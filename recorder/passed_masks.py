"""-inf values that were taken for masks, kept for the length of a batch: when a NaN is made of one, it was none.

A mask does no harm by itself: a softmax turns it into zeros, and fails only on a row of nothing but -inf. So where
fewer elements are -inf than a row is long, and something bad comes out all the same, the -inf is what was wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recorder.frames import OpenFrame
from recorder.policy import LISTED, only_neginf
from recorder.records import Frame, TensorRecord
from recorder.schema import Role

_PASSED_ON = (Role.INPUT, Role.OUTPUT)


@dataclass(eq=False)
class Passed:
    """A record that was taken for a mask. `frame` is that of its module call, once it has ended."""

    owner: OpenFrame
    record: TensorRecord
    frame: Frame | None = None


class PassedMasks:
    """What was taken for masks in this batch, in the order in which it was seen."""

    def __init__(self) -> None:
        self._passed: list[Passed] = []
        self._of_call: dict[OpenFrame, list[Passed]] = {}

    def begin_batch(self) -> None:
        self._passed.clear()
        self._of_call.clear()

    def note(self, owner: OpenFrame, record: TensorRecord, rule: str) -> None:
        """Remember what a rule excused; not what the user lists, who knows better."""
        if only_neginf(record.statistics) and not rule.startswith(LISTED):
            passed = Passed(owner, record._replace(expected=False))
            self._passed.append(passed)
            self._of_call.setdefault(owner, []).append(passed)

    def close(self, owner: OpenFrame, frame: Frame) -> None:
        """A module call has ended."""
        for passed in self._of_call.get(owner, ()):
            passed.frame = frame

    def behind_output(self, owner: OpenFrame, bad_outputs: list[TensorRecord]) -> Passed | None:
        """What a module call, of which all the rest was finite, made its bad output of."""
        mine = [one for one in self._of_call.get(owner, ()) if one.record.role is not Role.OUTPUT]
        for passed in sorted(mine, key=lambda one: one.record.role is Role.INPUT):
            if is_no_mask(passed.record) or (_is_plain_layer(owner) and passed.record.role is not Role.BUFFER):
                return self._first_of_chain(passed)
        return self._behind_nan(owner) if any(record.statistics.num_nan for record in bad_outputs) else None

    def behind_input(self, owner: OpenFrame, record: TensorRecord) -> Passed | None:
        """What the code around a module made the NaN of that it hands on to it."""
        return self._behind_nan(owner.parent) if owner.parent is not None and record.statistics.num_nan else None

    def _behind_nan(self, around: OpenFrame) -> Passed | None:
        """The first output of a module called by this one that can be no mask."""
        for passed in self._passed:
            if passed.owner.parent is around and passed.record.role is Role.OUTPUT and is_no_mask(passed.record):
                return self._first_of_chain(passed)
        return None

    def _first_of_chain(self, last: Passed) -> Passed:
        """Where the same -inf was first seen: modules and the sums between them pass it on."""
        if last.record.role not in _PASSED_ON:
            return last
        return next(one for one in self._passed if one.record.role in _PASSED_ON and _is_alike(one, last))


def is_no_mask(record: TensorRecord) -> bool:
    """Whether these -inf stand between other values, and are too few to fill a row; or are one number alone."""
    if record.layout.numel == 1:
        return True
    sizes = [int(size) for size in re.findall(r"\d+", record.layout.shape or "") if size != "1"]
    few = bool(sizes) and (record.statistics.num_neginf or 0) < sizes[-1]
    return few and record.statistics.abs_max not in (0.0, None)


def _is_plain_layer(owner: OpenFrame) -> bool:
    """A linear, convolutional or normalising layer, say: it has weights and no modules inside, and masks nothing."""
    return bool(owner.module._parameters) and not owner.module._modules


def _is_alike(one: Passed, other: Passed) -> bool:
    return (one.record.statistics.num_neginf, one.record.layout.numel) == (
        other.record.statistics.num_neginf,
        other.record.layout.numel,
    )
