"""The vertical scale of a picture of magnitudes: how far it reaches, which limits it shows, where the rails lie. Pure.

An inf has no place on an axis and a zero none on a logarithmic one: they lie on rails at the top and the bottom edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from recorder.schema import DtypeLimits
from viewer.chart_style import power_of_ten, short_number
from viewer.columns import Floats

NEAR = 9.0
"""Decades from the values at which a limit still belongs into the picture."""

TAIL = 0.02
"""Share of the smallest abs mins that may be left to the rail, where they reach LONG decades below the others."""

LONG = 3.0
NOTHING = np.empty(0)
LIMIT_WORDS = {"max": "max", "smallest_normal": "min normal", "smallest_subnormal": "smallest"}


@dataclass(frozen=True)
class Limit:
    """One limit of the dtypes that share it. kind: a key of LIMIT_WORDS."""

    kind: str
    value: float
    dtypes: tuple[str, ...]

    @property
    def words(self) -> tuple[str, str]:
        """What it is called, on two short lines."""
        return f"{', '.join(self.dtypes)}", f"{LIMIT_WORDS[self.kind]} {short_number(self.value)}"


@dataclass(frozen=True)
class Scale:
    """The axis in log10: `low` to `high` is in view; the rails lie at `top` and `bottom`, None where there is none.

    floor: what is below this lies on the bottom rail too; -inf when only zeros do. limits: those in view.
    beyond: those too far above to be in view.
    """

    low: float
    high: float
    top: float | None
    bottom: float | None
    floor: float
    limits: tuple[Limit, ...]
    beyond: tuple[Limit, ...]

    @property
    def decades(self) -> list[int]:
        """The exponents that get a tick, at most about a dozen, between the rails."""
        first = math.ceil(self.low if self.bottom is None else self.bottom + self._pad)
        last = math.floor(self.high if self.top is None else self.top - self._pad)
        step = max(1, math.ceil((last - first + 1) / 12))
        return [exponent for exponent in range(first, last + 1) if exponent % step == 0]

    @property
    def _bottom_word(self) -> str:
        return "0" if self.floor == -math.inf else f"<{power_of_ten(int(self.floor))}"

    @property
    def _pad(self) -> float:
        return (self.high - self.low) * 0.045

    @property
    def ticks(self) -> tuple[list[float], list[str]]:
        """Where the ticks are, as values of the axis, and what they say."""
        places = [power(exponent) for exponent in self.decades]
        words = [power_of_ten(exponent) for exponent in self.decades]
        if self.top is not None:
            places, words = [*places, power(self.top)], [*words, "inf, nan"]
        if self.bottom is not None:
            places, words = [power(self.bottom), *places], [self._bottom_word, *words]
        return places, words


def power(exponent: float) -> float:
    """10 to the exponent, as near as a float can be."""
    return math.pow(10.0, min(max(exponent, -323.0), 308.25))


def scale_of(
    values: Floats, finfo: dict[str, DtypeLimits], dtypes: Iterable[str], non_finite: bool, tails: Floats = NOTHING
) -> Scale:
    """The scale for these values (finite, 0 or above) of these dtypes.

    non_finite: whether a rail for what has no value is needed. tails: further values, the smallest of which need not
    be in view: one abs min of 1e-40 would press everything else into a corner.
    """
    logs, tail = (np.log10(some[some > 0]) for some in (values, tails))
    floor = _floor(logs, tail)
    seen = np.concatenate([logs, tail[tail >= floor]])
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (-1.0, 1.0)
    limits = list(_limits(finfo, dtypes))
    lowest = max(low - NEAR, floor)
    shown = [limit for limit in limits if lowest < math.log10(limit.value) < high + NEAR]
    edges = [math.log10(limit.value) for limit in shown]
    low, high = min([low, *edges]), max([high, *edges])
    pad = max(0.25, (high - low) * 0.045)
    top = high + 1.4 * pad if non_finite else None
    below = bool((values == 0).any() or (tails == 0).any() or (tail < floor).any())
    bottom = low - 1.4 * pad if below else None
    return Scale(
        low=(low if bottom is None else bottom) - pad * (0.9 if bottom is None else 0.75),
        high=(high if top is None else top) + pad * 0.9,
        top=top,
        bottom=bottom,
        floor=floor,
        limits=tuple(shown),
        beyond=tuple(one for one in limits if one.kind == "max" and one not in shown and one.value > power(high)),
    )


def _floor(logs: Floats, tail: Floats) -> float:
    """A whole exponent under which only the last of a long tail lies; -inf when there is no such tail."""
    if not len(tail):
        return -math.inf
    most = min([float(np.quantile(tail, TAIL)), *([float(logs.min())] if len(logs) else [])])
    return math.floor(most) if float(tail.min()) < most - LONG else -math.inf


def _limits(finfo: dict[str, DtypeLimits], dtypes: Iterable[str]) -> Iterator[Limit]:
    """Each limit once, with all dtypes that share it."""
    found: dict[tuple[str, float], list[str]] = {}
    for dtype in sorted(set(dtypes) & set(finfo)):
        for kind in LIMIT_WORDS:
            value = float(getattr(finfo[dtype], kind))
            if 0 < value < math.inf:
                found.setdefault((kind, value), []).append(dtype)
    for (kind, value), names in found.items():
        yield Limit(kind, value, tuple(names))
