"""The recorder's arguments, checked at construction: every error names the argument."""

from __future__ import annotations

import fnmatch
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recorder.errors import ConfigurationError
from recorder.policy import ExpectedPattern
from recorder.schema import Phase, Trigger

DEFAULT_RING_RECORDS = 65_536
MIN_RING_RECORDS = 64
MAX_RING_RECORDS = 1 << 24

BatchChoice = Collection[int] | Callable[[int], bool]
OverflowAction = str | Callable[[Trigger], object]


@dataclass(frozen=True)
class Settings:
    """Arguments of one recorder, validated.

    `scan_weights` looks at all weights before each batch; `detect_in_traced_batches` is off in the drop-in only.
    """

    log_dir: Path
    run_id: str | None = None
    trace_batches: BatchChoice = ()
    abort_after_batch: int | None = None
    on_overflow: OverflowAction = "raise"
    phases: tuple[Phase, ...] = tuple(Phase)
    full: bool = False
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    expected: tuple[ExpectedPattern, ...] = ()
    check: str = "auto"
    ring_records: int = DEFAULT_RING_RECORDS
    scan_weights: bool = True
    detect_in_traced_batches: bool = True
    max_frames_to_save: int | None = None

    def is_traced(self, batch: int) -> bool:
        if callable(self.trace_batches):
            return bool(self.trace_batches(batch))
        return batch in self.trace_batches

    @property
    def has_traced_batches(self) -> bool:
        return callable(self.trace_batches) or len(self.trace_batches) > 0

    @property
    def only_traced_batches(self) -> bool:
        """With overflows ignored and batches chosen, the other batches need no recording: sampling."""
        return self.on_overflow == "ignore" and self.has_traced_batches

    def as_json(self) -> dict[str, Any]:
        """The settings as run metadata."""
        values: dict[str, Any] = {
            "trace_batches": _choice_text(self.trace_batches),
            "abort_after_batch": self.abort_after_batch,
            "on_overflow": self.on_overflow if isinstance(self.on_overflow, str) else "callable",
            "phases": [phase.value for phase in self.phases],
            "stats": "full" if self.full else "minmax",
            "include": self.include,
            "exclude": self.exclude,
            "expected": [pattern.text for pattern in self.expected],
            "check": self.check,
            "ring_records": self.ring_records,
        }
        if self.max_frames_to_save is not None:
            values["max_frames_to_save"] = self.max_frames_to_save
        return values


def checked_settings(
    log_dir: str | os.PathLike[str],
    run_id: str | None = None,
    trace_batches: BatchChoice = (),
    abort_after_batch: int | None = None,
    on_overflow: OverflowAction = "raise",
    phases: Sequence[str] = ("forward", "backward", "optimizer"),
    stats: str = "minmax",
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    expected: Sequence[str] = (),
    check: str = "auto",
    ring_records: int = DEFAULT_RING_RECORDS,
) -> Settings:
    """Settings from a user's arguments; raises ConfigurationError naming the argument that is wrong."""
    return Settings(
        log_dir=_checked_log_dir(log_dir),
        run_id=_checked_run_id(run_id),
        trace_batches=_checked_batches(trace_batches),
        abort_after_batch=_checked_batch("abort_after_batch", abort_after_batch),
        on_overflow=_checked_action(on_overflow),
        phases=_checked_phases(phases),
        full=_one_of("stats", stats, ("minmax", "full")) == "full",
        include=None if include is None else _checked_globs("include", include),
        exclude=_checked_globs("exclude", exclude or ()),
        expected=tuple(ExpectedPattern.parse(text) for text in _checked_globs("expected", expected)),
        check=_one_of("check", check, ("auto", "frame", "batch")),
        ring_records=_checked_ring_records(ring_records),
    )


def check_model(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ConfigurationError("model", f"expected a torch.nn.Module, got {type(model).__name__}")
    return model


def check_optimizer(optimizer: object, model: nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """One optimizer, several, or none; each must hold a parameter of the model."""
    if optimizer is None:
        return ()
    several = tuple(optimizer) if isinstance(optimizer, (list, tuple)) else (optimizer,)
    mine = {id(parameter) for parameter in model.parameters()}
    for one in several:
        if not isinstance(one, torch.optim.Optimizer):
            raise ConfigurationError("optimizer", f"expected a torch.optim.Optimizer, got {type(one).__name__}")
        held = [parameter for group in one.param_groups for parameter in group["params"]]
        if not any(id(parameter) in mine for parameter in held):
            raise ConfigurationError("optimizer", f"this {type(one).__name__} holds no parameter of the model")
    return several


def check_scaler(scaler: object) -> Any:
    """A gradient scaler: anything with get_scale, step and update, as torch.amp.GradScaler and its kin have."""
    methods = ("get_scale", "step", "update")
    is_scaler = not isinstance(scaler, type) and all(callable(getattr(scaler, name, None)) for name in methods)
    if scaler is not None and not is_scaler:
        raise ConfigurationError("scaler", f"expected a torch.amp.GradScaler, got {type(scaler).__name__}")
    return scaler


def warn_of_unmatched(settings: Settings, modules: Sequence[str]) -> None:
    """Warn of each pattern that matches no module: a misspelt one would be silent for ever."""
    matched = {pattern.text: any(map(pattern.matches_module, modules)) for pattern in settings.expected}
    globs = {"include": settings.include or (), "exclude": settings.exclude}
    unmatched = [("expected", text) for text, is_matched in matched.items() if not is_matched]
    for argument, patterns in globs.items():
        unmatched += [(argument, pattern) for pattern in patterns if not _matches_any(pattern, modules)]
    for argument, pattern in unmatched:
        warnings.warn(f"{argument}: {pattern!r} matches no module of the model", RuntimeWarning, stacklevel=4)


def _matches_any(pattern: str, modules: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for module in modules)


def _checked_log_dir(log_dir: str | os.PathLike[str]) -> Path:
    try:
        path = Path(log_dir)
    except TypeError:
        raise ConfigurationError("log_dir", f"expected a path, got {type(log_dir).__name__}") from None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError("log_dir", f"cannot make the directory {path}: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigurationError("log_dir", f"the directory {path} is not writable")
    return path


def _checked_run_id(run_id: str | None) -> str | None:
    if run_id is None:
        return None
    if not isinstance(run_id, str) or not run_id or run_id in (".", "..") or set(run_id) & set("/\\\0"):
        raise ConfigurationError("run_id", f"{run_id!r} cannot be the name of a directory")
    return run_id


def _checked_batches(batches: BatchChoice) -> BatchChoice:
    if callable(batches):
        return batches
    if isinstance(batches, (str, bytes)) or not isinstance(batches, (Collection, Iterable)):
        raise ConfigurationError("trace_batches", "expected batch numbers, a range or a predicate")
    if isinstance(batches, range):
        if len(batches) and min(batches[0], batches[-1]) < 0:
            raise ConfigurationError("trace_batches", f"{batches} holds negative batch numbers")
        return batches
    return frozenset(_checked_batch("trace_batches", batch) for batch in batches)  # type: ignore[misc]


def _checked_batch(argument: str, batch: int | None) -> int | None:
    if batch is None and argument == "abort_after_batch":
        return None
    if isinstance(batch, bool) or not hasattr(batch, "__index__"):
        raise ConfigurationError(argument, f"expected batch numbers, got {batch!r}")
    number = int(batch)  # type: ignore[arg-type]
    if number < 0:
        raise ConfigurationError(argument, f"a batch number is 0 or more, got {number}")
    return number


def _checked_action(action: OverflowAction) -> OverflowAction:
    if callable(action):
        return action
    return _one_of("on_overflow", action, ("raise", "warn", "ignore"))


def _checked_phases(phases: Sequence[str]) -> tuple[Phase, ...]:
    known = [phase.value for phase in Phase]
    names = _several("phases", phases)
    for name in names:
        if name not in known:
            raise ConfigurationError("phases", f"unknown phase {name!r}; phases are {', '.join(known)}")
    if not names:
        raise ConfigurationError("phases", f"name at least one of {', '.join(known)}")
    return tuple(Phase(name) for name in names)


def _checked_globs(argument: str, patterns: Sequence[str]) -> tuple[str, ...]:
    several = _several(argument, patterns)
    for pattern in several:
        if not isinstance(pattern, str):
            raise ConfigurationError(argument, f"expected patterns as text, got {pattern!r}")
    return several


def _several(argument: str, texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str):
        return (texts,)
    if not isinstance(texts, Iterable):
        raise ConfigurationError(argument, f"expected text, or several, got {texts!r}")
    return tuple(texts)


def _checked_ring_records(records: int) -> int:
    if isinstance(records, bool) or not hasattr(records, "__index__"):
        raise ConfigurationError("ring_records", f"expected a number of records, got {records!r}")
    if not MIN_RING_RECORDS <= int(records) <= MAX_RING_RECORDS:
        raise ConfigurationError("ring_records", f"{records} is not between {MIN_RING_RECORDS} and {MAX_RING_RECORDS}")
    return int(records)


def _one_of(argument: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigurationError(argument, f"{value!r} is not one of {', '.join(allowed)}")
    return str(value)


def _choice_text(choice: BatchChoice) -> object:
    if callable(choice):
        return "predicate"
    return str(choice) if isinstance(choice, range) else sorted(choice)
