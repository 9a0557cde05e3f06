"""The end of the process: recorders that are still open when it comes get to write their dumps.

Covers an uncaught exception, SIGTERM and a normal exit. A process that is killed outright leaves its ring.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from types import FrameType, TracebackType
from typing import Any, Protocol


class Closing(Protocol):
    """What a recorder does at the end."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def spill_for_signal(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_hook_before: Any = None
_sigterm_installed = False


def watch(recorder: Closing) -> None:
    """Call the recorder when the process ends, until `unwatch`. It is not kept alive for that."""
    if not _open:
        _install()
    _open.add(recorder)


def unwatch(recorder: Closing) -> None:
    _open.discard(recorder)
    if not _open:
        _uninstall()


def _install() -> None:
    global _hook_before, _sigterm_installed
    _hook_before = sys.excepthook
    sys.excepthook = _on_uncaught
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
        _sigterm_installed = True


def _uninstall() -> None:
    global _sigterm_installed
    if sys.excepthook is _on_uncaught:
        sys.excepthook = _hook_before
    in_main_thread = threading.current_thread() is threading.main_thread()
    if _sigterm_installed and in_main_thread and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _sigterm_installed = False


def _on_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    hook = _hook_before or sys.__excepthook__
    try:
        for recorder in list(_open):
            recorder.__exit__(kind, error, traceback)
    finally:
        hook(kind, error, traceback)


def _on_sigterm(number: int, _frame: FrameType | None) -> None:
    """Write the dumps, then die of the signal as if nobody had caught it."""
    try:
        for recorder in list(_open):
            recorder.spill_for_signal()
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _in_forked_child() -> None:
    """A data loader's worker is no part of the run: it records nothing, and dies of signals as it did."""
    for recorder in list(_open):
        recorder.abandon()
    _open.clear()
    _uninstall()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


@atexit.register
def _on_exit() -> None:
    for recorder in list(_open):
        recorder.close()
