"""Loss scaling: which non-finite gradients are a gradient scaler finding its scale, and when it never will."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import torch

from recorder.optimizer_steps import parameters_of
from recorder.stats import measure
from recorder.stream import Found

LOWEST_USEFUL_SCALE = 1.0
"""Below this the loss is shrunk: the unscaled gradients themselves do not fit their dtype, or hold a NaN."""


_SCALER_STEP = torch.amp.GradScaler.step.__code__


class LossScaling:
    """The run's gradient scaler, handed over or found, and the steps it has skipped in a row."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._looked_for_one = scaler is not None
        self._last_scale: float | None = None
        self._is_confirmed = scaler is not None
        self._bad: Found | None = None
        self._stepped = False
        self.skips = 0

    @property
    def scale(self) -> float | None:
        """The scale when it was last read."""
        return self._last_scale

    def is_active(self) -> bool:
        """Whether a scaler guards the steps: then a bad gradient makes it skip, and harms nothing."""
        if not self._looked_for_one:
            self._looked_for_one = True
            self._scaler = _find_scaler()
        return self._scaler is not None and bool(getattr(self._scaler, "is_enabled", lambda: True)())

    def note_bad_gradient(self, found: Found) -> None:
        """Remember where the first bad gradient of this batch was born."""
        if self._bad is None and self._scaler is not None:
            self._bad = found

    def begin_batch(self) -> None:
        self._stepped = False
        if self._scaler is not None and self._reading_is_free():
            self._last_scale = self._read()

    def end_batch(self) -> tuple[bool, Found | None]:
        """Whether the step of this batch was skipped, and the bad gradient to report when skips do not end."""
        bad = self._bad
        if bad is None or self._scaler is None:
            return False, None
        before, now = self._last_scale, self._read()
        self._last_scale = now
        if before is not None and now >= before:
            if self._stepped:  # what was bad has been mended; else gradients are still being accumulated
                self._bad = None
            return False, None
        self._bad = None
        self.skips += 1
        return True, bad if now < LOWEST_USEFUL_SCALE and self.skips > 1 else None

    def begin_step(self, optimizer: torch.optim.Optimizer) -> Found | None:
        """A step is being taken. A bad gradient that should have prevented it was guarded by no scaler.

        One scaler may serve several optimizers, and skip the steps of those alone that hold a bad gradient.
        """
        if self.skips_inside(optimizer):
            return None
        self._stepped = True
        if not self._is_confirmed:
            self._confirm(optimizer)
        if self._bad is None:
            self.skips = 0
            return None
        if self._scaler is not None and not _holds_bad_gradient(optimizer):
            return None
        bad, self._bad = self._bad, None
        return bad

    def _confirm(self, optimizer: torch.optim.Optimizer) -> None:
        """A step shows which scaler guards this run, if one does: what was found may be an earlier run's."""
        self._scaler = _scaler_at_work(optimizer, self._scaler)
        self._looked_for_one = True
        self._is_confirmed = self._scaler is not None

    def skips_inside(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this step does nothing: a fused optimizer is handed what the scaler found, and skips by itself."""
        return self._bad is not None and getattr(optimizer, "found_inf", None) is not None

    def forget(self) -> None:
        """Hold on to no scaler of the user's."""
        self._scaler = None

    def _read(self) -> float:
        return float(self._scaler.get_scale())

    def _reading_is_free(self) -> bool:
        scale = getattr(self._scaler, "_scale", None)
        return self._last_scale is None or not isinstance(scale, torch.Tensor) or scale.device.type == "cpu"


def _holds_bad_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Asked in the rare batch that had a bad gradient: it may have gone to another optimizer, or been mended."""
    return any(p.grad is not None and measure(p.grad).flagged for p in parameters_of(optimizer))


def _scaler_at_work(optimizer: torch.optim.Optimizer, candidate: Any) -> Any:
    """The scaler that is calling this optimizer's step, or that has unscaled its gradients; None where none does."""
    if id(optimizer) in getattr(candidate, "_per_optimizer_states", ()):
        return candidate
    running: FrameType | None = sys._getframe()
    while running is not None:
        if running.f_code is _SCALER_STEP:
            return running.f_locals["self"]
        running = running.f_back
    return None


def _find_scaler() -> Any:
    """A torch scaler that has scaled a loss already. Asked once, when the first bad gradient is seen."""
    for candidate in gc.get_objects():
        # not isinstance: that asks lazy proxies for their class, and wakes them
        if (
            issubclass(type(candidate), torch.amp.GradScaler)
            and candidate.is_enabled()
            and candidate._scale is not None
        ):
            return candidate
    return None
