"""What is abnormal and what is expected: rules that know a legitimate non-finite value by its surroundings.

A rule may only ever excuse a -inf. A NaN or +inf is excused by nothing but the user's own list.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recorder.errors import ConfigurationError
from recorder.records import Statistics, TensorRecord
from recorder.schema import DtypeLimits, Role

KINDS = ("nan", "inf", "+inf", "-inf")
LISTED = "listed: "
"""What the name of a rule begins with that the user has given."""

NEAR_LIMIT = 1 / 8
"""A -inf beside finite values within three binades of the dtype's limit is an overflow, not a mask."""


@dataclass(frozen=True)
class ExpectedPattern:
    """One entry of `expected`: MODULE[:ROLE[:KEY[:KIND]]], shell wildcards in the first three.

    "*.router:output" excuses every non-finite output of modules called router; "mask:buffer:*:-inf" only -inf.
    """

    text: str
    module: str
    role: str = "*"
    key: str = "*"
    kind: str = "*"

    @classmethod
    def parse(cls, text: str) -> ExpectedPattern:
        """Raises ConfigurationError when the text is not such a pattern."""
        parts = text.split(":") if isinstance(text, str) else []
        if not 1 <= len(parts) <= 4:
            raise ConfigurationError("expected", f"{text!r} is not MODULE[:ROLE[:KEY[:KIND]]]")
        pattern = cls(text, *parts)
        if not any(fnmatch.fnmatchcase(role.value, pattern.role) for role in Role):
            raise ConfigurationError("expected", f"{text!r}: role must be one of {', '.join(r.value for r in Role)}")
        if pattern.kind not in ("*", *KINDS):
            raise ConfigurationError("expected", f"{text!r}: kind must be one of {', '.join(KINDS)}")
        return pattern

    def matches_module(self, module: str) -> bool:
        return fnmatch.fnmatchcase(module, self.module)

    def matches(self, module: str, role: Role, key: str, statistics: Statistics) -> bool:
        return (
            self.matches_module(module)
            and fnmatch.fnmatchcase(role.value, self.role)
            and fnmatch.fnmatchcase(key, self.key)
            and self._covers(statistics)
        )

    def _covers(self, statistics: Statistics) -> bool:
        """Whether every kind of non-finite value that is there is of this pattern's kind."""
        kinds = {
            "nan": statistics.num_nan or 0,
            "+inf": statistics.num_posinf or 0,
            "-inf": statistics.num_neginf or 0,
        }
        allowed = set(kinds) if self.kind == "*" else {"+inf", "-inf"} if self.kind == "inf" else {self.kind}
        return all(kind in allowed for kind, count in kinds.items() if count)


class Policy:
    """Decides for each flagged record by which rule it is expected, if by any."""

    def __init__(self, patterns: Sequence[ExpectedPattern], finfo: dict[str, DtypeLimits]) -> None:
        self._patterns = patterns
        self._finfo = finfo

    def rule(self, module: str, record: TensorRecord, beside: Iterable[TensorRecord], trainable: bool) -> str | None:
        """The name of the rule that makes a flagged record expected; None when it is abnormal.

        `beside` are the parameters, buffers and inputs of the same frame, and what its children put out;
        `trainable` says of a parameter whether an optimizer may change it.
        """
        listed = self.listed(module, record)
        if listed is not None:
            return listed
        if not only_neginf(record.statistics) or self._near_limit(record):
            return None
        if record.role is Role.INPUT:
            return "additive mask" if _is_additive_mask(record.statistics) else "masked scores"
        pure = _is_additive_mask(record.statistics)
        if record.role is Role.BUFFER:
            return "mask buffer" if pure or _is_a_table(record) else None
        if record.role is Role.PARAMETER:
            return "mask parameter" if _is_a_table(record) and (pure or not trainable) else None
        if record.role is Role.OUTPUT:
            return _output_rule(record, list(beside))
        return None

    def listed(self, module: str, record: TensorRecord) -> str | None:
        """The rule when the user's own list excuses a flagged record."""
        for pattern in self._patterns:
            if pattern.matches(module, record.role, record.key, record.statistics):
                return LISTED + pattern.text
        return None

    def _near_limit(self, record: TensorRecord) -> bool:
        limits = self._finfo.get(record.layout.dtype)
        largest = record.statistics.abs_max
        return limits is not None and largest is not None and largest >= limits.max * NEAR_LIMIT


def only_neginf(statistics: Statistics) -> bool:
    return bool(statistics.num_neginf) and not statistics.num_nan and not statistics.num_posinf


def _is_additive_mask(statistics: Statistics) -> bool:
    return statistics.abs_max in (0.0, None)


def _is_a_table(record: TensorRecord) -> bool:
    """Whether it has rows and columns. A bias, a running variance or a list of frequencies is no mask."""
    return "," in (record.layout.shape or "").rstrip(",)")


def _output_rule(record: TensorRecord, beside: list[TensorRecord]) -> str | None:
    """A -inf in an output is legitimate when it was passed on, or when a mask put it between unchanged values.

    Where a floating input holds an exact zero the -inf may be a logarithm's, and is never excused by shape alone.
    A single number, such as a loss, has nothing to mask, and a layer that has weights does not hand values on.
    """
    if record.layout.numel == 1:
        return None
    if any(only_neginf(other.statistics) for other in beside):
        return "mask passed on"
    inputs = [other for other in beside if other.role is Role.INPUT and other.statistics.abs_max is not None]
    floating = [other for other in inputs if "float" in other.layout.dtype]
    if any(other.statistics.abs_min == 0.0 for other in floating):
        return None
    if any(other not in floating and (other.statistics.abs_max or 0.0) <= 1.0 for other in inputs):
        return "masked by an input"  # true and false; larger numbers are ids or positions, and mask nothing
    has_weights = any(other.role is Role.PARAMETER for other in beside)
    if not has_weights and any(_holds_values_of(other, record) for other in floating):
        return "filtered logits"
    return None


def _holds_values_of(source: TensorRecord, filtered: TensorRecord) -> bool:
    """Whether `filtered` can be `source` with some elements replaced."""
    if source.layout.numel != filtered.layout.numel:
        return False
    largest = filtered.statistics.abs_max
    return largest is not None and source.statistics.abs_max is not None and largest <= source.statistics.abs_max
