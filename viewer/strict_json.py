"""JSON that every parser reads: no bare NaN or Infinity in it. Pure."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any, indent: int | None = None) -> str:
    """The value as strict JSON; a float that is not finite is spelled as text, so no number is lost or invented."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_spelled(value), indent=indent, allow_nan=False)


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
