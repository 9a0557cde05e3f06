"""The wall between the recorder and the run: what goes wrong in a hook of ours never reaches the training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import torch

from recorder.clock import Clock
from recorder.errors import BatchLimitReached, OverflowDetected

_Result = TypeVar("_Result")


class Guard:
    """Runs the bodies of hooks: one at a time, without gradients, timed, and inert once `live` is false.

    `seconds` is the time spent so far. Only errors that are raised on purpose, and those of the user's own
    callback, pass through; any other is given to `failed`.
    """

    def __init__(self, clock: Clock, failed: Callable[[Exception], None]) -> None:
        self.live = True
        self.seconds = 0.0
        self._clock = clock
        self._failed = failed
        self._users_error: BaseException | None = None

    def run(self, body: Callable[..., None], *args: Any) -> None:
        if not self.live or is_traced_by_a_compiler():
            return
        self._users_error = None  # it holds on to the frames that it went through, and they to their tensors
        begun = time.perf_counter()
        gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            with self._clock.lock:
                body(*args)
        except (OverflowDetected, BatchLimitReached):
            raise
        except Exception as error:
            if error is self._users_error:
                raise
            self.live = False
            self._failed(error)
        finally:
            torch._C._set_grad_enabled(gradients)
            self.seconds += time.perf_counter() - begun

    @staticmethod
    def is_inside() -> bool:
        """Whether this thread is in the middle of a hook's body: a signal handler may run there."""
        running: FrameType | None = sys._getframe()
        while running is not None:
            if running.f_code is Guard.run.__code__:
                return True
            running = running.f_back
        return False

    def call_user(self, body: Callable[[], _Result]) -> _Result:
        """Call the user's own function: its errors are the user's, and pass through."""
        try:
            return body()
        except BaseException as error:
            self._users_error = error
            raise


def is_traced_by_a_compiler() -> bool:
    """Under torch.compile, torch.export and torch.jit.trace a hook's operations would end up in the graph."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
