"""All patterns, asked in turn, the surest answers first."""

from __future__ import annotations

from collections.abc import Callable

from recorder.diagnosis.backward_patterns import BACKWARD_PATTERNS, OUTSIDE_PATTERNS, backward_code
from recorder.diagnosis.birth import Source
from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.forward_patterns import FORWARD_PATTERNS, own_code, single_sample_norm
from recorder.diagnosis.reading import Confidence, Reading
from recorder.diagnosis.step_patterns import STEP_PATTERNS, step_code

Pattern = Callable[[Evidence], Reading | None]
_MADE_HERE = (Source.BORN, Source.BETWEEN)


def readings(evidence: Evidence) -> tuple[Reading, ...]:
    """Every reading that the evidence allows, the most plausible first; a last resort where none fits."""
    asked = [*STEP_PATTERNS, *_patterns_of(evidence)]
    found = [reading for reading in (pattern(evidence) for pattern in asked) if reading is not None]
    last_resort = _LAST_RESORT.get(evidence.first.phase)
    if not found and evidence.source in _MADE_HERE and last_resort is not None:
        found = [last_resort(evidence)]
    return tuple(sorted(found, key=lambda reading: reading.confidence.order))


def plausible(found: tuple[Reading, ...], limit: int = 3) -> tuple[Reading, ...]:
    """Those worth saying: beside a sure one, no mere possibilities."""
    sure = [reading for reading in found if reading.confidence is not Confidence.POSSIBLE]
    has_sure = bool(found) and found[0].confidence.order <= Confidence.VERY_LIKELY.order
    return tuple(sure if has_sure else found)[:limit]


def _patterns_of(evidence: Evidence) -> tuple[Pattern, ...]:
    """The patterns that make sense for the phase and the source; what came in from elsewhere has few."""
    phase, source = evidence.first.phase, evidence.source
    if phase == "forward":
        return FORWARD_PATTERNS if source in _MADE_HERE else (single_sample_norm,)
    if phase == "backward":
        return {Source.BORN: BACKWARD_PATTERNS, Source.AFTER: OUTSIDE_PATTERNS}.get(source, ())
    return ()


_LAST_RESORT = {"forward": own_code, "backward": backward_code, "optimizer": step_code}
