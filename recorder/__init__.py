"""Overflight's recorder: watches a model's numerics while it trains.

The names are handed on lazily, so that reading a dump needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recorder.debug_underflow_overflow import (
        DebugOption,
        DebugUnderflowOverflow,
        detect_overflow,
        get_abs_min_max,
    )
    from recorder.errors import (
        BatchLimitReached,
        ConfigurationError,
        DumpError,
        OverflowDetected,
        RecorderError,
    )
    from recorder.reading import read
    from recorder.recorder import Recorder

__version__ = "0.1.0"

_HOME = {
    "Recorder": "recorder.recorder",
    "DebugUnderflowOverflow": "recorder.debug_underflow_overflow",
    "DebugOption": "recorder.debug_underflow_overflow",
    "detect_overflow": "recorder.debug_underflow_overflow",
    "get_abs_min_max": "recorder.debug_underflow_overflow",
    "read": "recorder.reading",
    "RecorderError": "recorder.errors",
    "ConfigurationError": "recorder.errors",
    "OverflowDetected": "recorder.errors",
    "BatchLimitReached": "recorder.errors",
    "DumpError": "recorder.errors",
}

__all__ = [
    "BatchLimitReached",
    "ConfigurationError",
    "DebugOption",
    "DebugUnderflowOverflow",
    "DumpError",
    "OverflowDetected",
    "Recorder",
    "RecorderError",
    "detect_overflow",
    "get_abs_min_max",
    "read",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'recorder' has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModuleNotFoundError(
                f"recorder.{name} needs PyTorch: install the torch build that fits your machine, then try again.",
                name="torch",
            ) from None
        raise
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
