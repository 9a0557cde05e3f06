"""The drop-in for `transformers.debug_utils.DebugUnderflowOverflow`: its names, its printed report, and a dump."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recorder.dump import read_dump, to_frame
from recorder.errors import ConfigurationError
from recorder.front_end import FrontEnd
from recorder.recorder import Recorder
from recorder.schema import Phase, Trigger
from recorder.settings import checked_settings
from recorder.stats import measure
from recorder.text import abs_min_max_text, extended_report

_ITS_NAMES = {"trace_batches": "trace_batch_nums", "abort_after_batch": "abort_after_batch_num"}


class DebugOption(str, Enum):
    """Values of a trainer's `debug` argument."""

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


def detect_overflow(var: torch.Tensor, ctx: str) -> bool:
    """Whether a tensor of any dtype or layout holds a nan or inf; prints "{ctx} has nans" and "{ctx} has infs"."""
    with torch.no_grad():
        found = measure(var)
    if found.has_nan:
        print(f"{ctx} has nans")
    if found.has_inf:
        print(f"{ctx} has infs")
    return found.flagged


def get_abs_min_max(var: torch.Tensor, ctx: str) -> str:
    """A line of the printed report: abs min, abs max and `ctx`."""
    with torch.no_grad():
        return f"{abs_min_max_text(measure(var)._asdict(), var.numel())} {ctx}"


class DebugUnderflowOverflow:
    """Prints the frames that led to an overflow and raises ValueError, or prints chosen batches in full.

    Beside the print a dump is written. Detection is off in traced batches. Rows that the original cannot see
    (keyword arguments, nested outputs, buffers) are further lines of the same layout.

    Args:
        model: the module to watch.
        max_frames_to_save: how many frames before the overflow are printed.
        trace_batch_nums: numbers of the batches to print in full.
        abort_after_batch_num: raise ValueError when the forward of this batch returns.
        log_dir: where the dumps go; "runs" when None.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        model: nn.Module,
        max_frames_to_save: int = 21,
        trace_batch_nums: Collection[int] | None = None,
        abort_after_batch_num: int | None = None,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(max_frames_to_save, bool) or not isinstance(max_frames_to_save, int) or max_frames_to_save < 1:
            raise ConfigurationError("max_frames_to_save", f"expected 1 or more, got {max_frames_to_save!r}")
        try:
            settings = checked_settings(
                "runs" if log_dir is None else log_dir,
                trace_batches=trace_batch_nums or (),
                abort_after_batch=abort_after_batch_num,
                phases=(Phase.FORWARD.value,),
                check="frame",
            )
        except ConfigurationError as error:
            raise ConfigurationError(_ITS_NAMES.get(error.argument, error.argument), error.problem) from None
        settings = replace(
            settings,
            scan_weights=False,
            detect_in_traced_batches=False,
            max_frames_to_save=max_frames_to_save,
        )
        self._recorder = Recorder.with_settings(model, settings, _PrintedReport())

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self._recorder.run_dir

    @property
    def dumps(self) -> list[Path]:
        """Paths of the dumps written so far."""
        return self._recorder.dumps

    @property
    def batch_number(self) -> int:
        """Number of the current batch."""
        return self._recorder.batch

    def close(self) -> None:
        """Take the hooks off the model."""
        self._recorder.close()

    def __enter__(self) -> DebugUnderflowOverflow:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._recorder.__exit__(*exception)


class _PrintedReport(FrontEnd):
    """The original's printed report, and its errors' messages."""

    def overflow(self, trigger: Trigger, dump: Path | None) -> str:
        if dump is None:
            return super().overflow(trigger, dump)
        self._print(dump)
        return (
            "DebugUnderflowOverflow: inf/nan detected, aborting as there is no point running further. "
            "Please scroll up above this traceback to see the activation values prior to this event.\n"
            f"The dump tells the story: overflight report {dump}"
        )

    def traced(self, dump: Path) -> None:
        self._print(dump)

    def batch_limit(self, batches: int, limit: int, run_dir: Path) -> str:
        return (
            f"DebugUnderflowOverflow: aborting after {batches} batches due to `abort_after_batch_num={limit}` arg; "
            f"the run is in {run_dir}"
        )

    def _print(self, dump: Path) -> None:
        table, info = read_dump(dump)
        print(extended_report(to_frame(table), info), end="")
