"""What a reader has chosen to see: plain frozen data, and how a name is matched."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

METRICS = ("abs_max", "abs_min", "rms")
AXES = ("execution", "depth", "batch")
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class Filter:
    """Which records are in view; every empty field lets all pass.

    module: this module and all below it. name: a part of a module's path or class, or a pattern with `*`, `?`, `[a-z]`
    that is the whole of one; upper and lower case are the same. batches: first and last, both included.
    training: True for training batches, False for evaluation. metrics: which numbers are drawn. x: one of AXES.
    """

    phases: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    module: str = ""
    name: str = ""
    batches: tuple[int, int] | None = None
    training: bool | None = None
    flagged: bool = False
    metrics: tuple[str, ...] = ("abs_max", "abs_min")
    x: str = "execution"


def matches(pattern: str, *texts: str) -> bool:
    """Whether one of the texts has the pattern in it, or is what a pattern with wildcards describes."""
    wanted = pattern.strip().lower()
    if _WILDCARDS.isdisjoint(wanted):
        return any(wanted in text.lower() for text in texts)
    return any(fnmatchcase(text.lower(), wanted) for text in texts)


def is_below(module: str, ancestor: str) -> bool:
    """Whether a module is the ancestor or inside of it; the root `""` holds all."""
    return not ancestor or module == ancestor or module.startswith(f"{ancestor}.")
