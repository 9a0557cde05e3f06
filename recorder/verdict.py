"""The diagnosis in plain words: where it was born, what fed it, how it spread. Pure, no torch, from records alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from recorder.diagnosis.birth import Birth, Source, find_birth
from recorder.diagnosis.calm import calm_lines, exception_line, open_frame
from recorder.diagnosis.evidence import gather
from recorder.diagnosis.forward_patterns import single_sample_norm
from recorder.diagnosis.patterns import plausible, readings
from recorder.diagnosis.reading import Confidence, Reading
from recorder.diagnosis.rows import Rows, Value
from recorder.diagnosis.story import numbers, story
from recorder.diagnosis.words import kind_of, line, place
from recorder.schema import RunInfo, TriggerKind

__all__ = ["Confidence", "Reading", "Verdict", "diagnose", "headline"]

MOST_LINES = 10


@dataclass(frozen=True)
class Verdict:
    """What a dump says.

    origin: where the first bad value was (batch, step, seq, call, phase, module, role, key; a number is None where
    it is not known); None when nothing went bad. inherited: it was not made there but came in: with the data, from a
    buffer or parameter, from the step or the gradient before. lines: at most ten, in plain words, each short enough
    for a terminal. readings: what may be behind it, the most plausible first; `lines` says the best of them.
    """

    origin: dict[str, Any] | None
    inherited: bool
    lines: tuple[str, ...]
    readings: tuple[Reading, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def diagnose(records: pd.DataFrame, info: RunInfo) -> Verdict:
    """The verdict on one dump.

    Args:
        records: one row a record, with a dump's columns; texts may be categorical. Rows of other ranks are left out.
        info: the dump's metadata.

    Raises nothing for a table that has a dump's columns, or some of them, whatever is null in it.
    """
    rows = Rows(records, info.rank)
    birth = find_birth(rows, info)
    if birth is None:
        return _calm(rows, info)
    evidence = gather(rows, birth, info)
    found = readings(evidence)
    told = [f"{_where(birth.first)}.", *story(evidence)]
    if _is_exception(info):
        told.append(exception_line(rows, info))
    told += _told_readings(plausible(found), MOST_LINES - len(told))
    return Verdict(_origin(birth.first), birth.inherited, _fitted(told), found)


def headline(records: pd.DataFrame, info: RunInfo) -> str:
    """One line for an exception: what went bad, where, in which batch, and against which limit."""
    rows = Rows(records, info.rank)
    birth = find_birth(rows, info)
    if birth is None:
        return calm_lines(rows, info)[0]
    said = numbers(gather(rows, birth, info))
    return f"{_where(birth.first, width=200)}: {said}" if said else _where(birth.first, width=200)


def _calm(rows: Rows, info: RunInfo) -> Verdict:
    """Nothing went bad; an exception may still have a reading, from what the open module had received."""
    told = calm_lines(rows, info)
    found: tuple[Reading, ...] = ()
    if _is_exception(info) and (frame := open_frame(rows, info)):
        reading = single_sample_norm(gather(rows, Birth(frame[0], Source.UNKNOWN), info))
        found = () if reading is None else (reading,)
    return Verdict(None, False, _fitted(told[:1] + _told_readings(found, 2) + told[1:]), found)


def _is_exception(info: RunInfo) -> bool:
    return info.trigger is not None and info.trigger.kind == TriggerKind.EXCEPTION.value


def _where(first: Value, width: int = 72) -> str:
    return f"{kind_of(first)} in {place(first, width)}"


def _origin(first: Value) -> dict[str, Any]:
    numbers_of = {name: getattr(first, name) for name in ("batch", "step", "seq", "call")}
    texts = {name: getattr(first, name) for name in ("phase", "module", "role", "key")}
    return {**{name: number if number >= 0 else None for name, number in numbers_of.items()}, **texts}


def _told_readings(found: tuple[Reading, ...], room: int) -> list[str]:
    """Two lines a reading, what is behind it and what to try; the last one without advice where room ends."""
    told: list[str] = []
    for reading in found:
        cause = f"{reading.confidence.value.capitalize()}: {reading.cause}."
        advice = f"Try: {reading.advice}."
        left = room - len(told)
        told += [cause, advice] if left >= 2 else [cause] if left == 1 else []
    return told


def _fitted(lines: list[str]) -> tuple[str, ...]:
    return tuple(line(text) for text in lines[:MOST_LINES])
