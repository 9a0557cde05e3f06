"""An error of Overflight crosses a process border whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from recorder.errors import BatchLimitReached, ConfigurationError, DumpError, OverflowDetected, RecorderError
from recorder.schema import Trigger

ERRORS = [
    ConfigurationError("stats", "no such"),
    OverflowDetected("two\nlines", Trigger("overflow", batch=3), Path("a.parquet")),
    BatchLimitReached("stopped"),
    DumpError("a.parquet", "the file is empty"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_is_pickled_with_its_message_and_attributes(error: RecorderError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
