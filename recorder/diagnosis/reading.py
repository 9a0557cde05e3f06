"""One way to read the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Confidence(str, Enum):
    """How sure a reading is, surest first."""

    CERTAIN = "certain"
    VERY_LIKELY = "very likely"
    LIKELY = "likely"
    POSSIBLE = "possible"

    @property
    def order(self) -> int:
        return list(Confidence).index(self)


@dataclass(frozen=True)
class Reading:
    """A pattern that fits the evidence.

    pattern: its name. confidence: one of the words of `Confidence`. cause: what usually is behind it.
    advice: what to try next.
    """

    pattern: str
    confidence: Confidence
    cause: str
    advice: str
