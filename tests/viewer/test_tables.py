"""Text for a terminal: aligned, rounded, and free of control characters."""

from __future__ import annotations

import pytest

from viewer.tables import age_text, aligned, number, plural, printable, size_text


def test_columns_are_aligned_and_numbers_end_flush() -> None:
    assert aligned([("a", "1"), ("long", "23")], right=frozenset({1}), indent="") == ["a      1", "long  23"]


def test_lines_have_no_trailing_blanks() -> None:
    assert aligned([("a", ""), ("b", "x")], indent="") == ["a", "b  x"]


def test_control_characters_are_spelled_out_and_other_scripts_are_kept() -> None:
    assert printable("a\x1b[31m\n\u202eb") == "a\\x1b[31m\\n\\u202eb"
    assert printable("слой.µ") == "слой.µ"


@pytest.mark.parametrize(("value", "text"), [(63000.0, "6.30e+04"), (0.0, "0.00e+00"), (float("nan"), ""), (None, "")])
def test_what_was_not_computed_is_empty_not_zero(value: object, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (2**32, "4.0 GiB")])
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5.0, "0 s"), (89.0, "89 s"), (600.0, "10 min"), (7200.0, "2 h"), (4 * 86400.0, "4 d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_counts_agree_with_their_noun() -> None:
    assert [plural(n, "record") for n in (0, 1, 2000)] == ["0 records", "1 record", "2,000 records"]
