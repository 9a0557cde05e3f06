"""Every error that Overflight raises on purpose. All of them pickle: worker processes send theirs home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recorder.schema import Trigger


class RecorderError(Exception):
    """Base of all errors of the recorder."""


class ConfigurationError(RecorderError, ValueError):
    """An argument is wrong; the message begins with the argument's name."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[str, str]]:
        return type(self), (self.argument, self.problem)


class OverflowDetected(RecorderError, ValueError):
    """An inf or nan appeared; its dump is already on disk.

    Attributes:
        trigger: where it appeared (batch, step, seq, call, phase, module, role, key).
        dump: path of the dump, or None when it could not be written.
    """

    def __init__(self, message: str, trigger: Trigger, dump: Path | None) -> None:
        super().__init__(message)
        self.trigger = trigger
        self.dump = dump

    def __reduce__(self) -> tuple[type[OverflowDetected], tuple[str, Trigger, Path | None]]:
        return type(self), (str(self), self.trigger, self.dump)


class BatchLimitReached(RecorderError, ValueError):
    """The run was stopped after the batch that `abort_after_batch` names."""


class DumpError(RecorderError):
    """A file cannot be read as a dump or ring; the message names the file and what is wrong with it."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem

    def __reduce__(self) -> tuple[type[DumpError], tuple[Path, str]]:
        return type(self), (self.path, self.problem)
