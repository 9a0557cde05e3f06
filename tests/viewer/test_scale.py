"""The vertical scale: which limits belong into a picture, and where infinity and zero lie."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recorder.schema import DtypeLimits
from tests.builders import FINFO, FP16
from viewer.scale import scale_of

BF16 = DtypeLimits(3.3895e38, 1.1755e-38, 9.1835e-41, 2**-7, 16)
ALL = {**FINFO, "bfloat16": BF16}


def test_limits_of_the_dtypes_in_view_are_shown_and_no_others() -> None:
    scale = scale_of(np.array([1e-3, 100.0]), ALL, ["float16"], non_finite=False)
    assert {limit.value for limit in scale.limits} == {FP16.max, FP16.smallest_normal, FP16.smallest_subnormal}
    assert all(limit.dtypes == ("float16",) for limit in scale.limits)
    assert scale.beyond == ()


def test_a_limit_far_above_is_named_but_does_not_flatten_the_picture() -> None:
    scale = scale_of(np.array([1e-3, 100.0]), ALL, ["float32"], non_finite=False)
    assert scale.high < 4
    assert [limit.value for limit in scale.beyond] == [FINFO["float32"].max]


def test_a_limit_that_the_values_approach_comes_into_view() -> None:
    scale = scale_of(np.array([1.0, 1e34]), ALL, ["float32"], non_finite=False)
    assert scale.high > math.log10(FINFO["float32"].max)


def test_dtypes_that_share_a_limit_share_its_line() -> None:
    finfo = {"a": FP16, "b": FP16}
    assert [limit.dtypes for limit in scale_of(np.array([1.0]), finfo, ["a", "b"], False).limits] == [("a", "b")] * 3


def test_rails_are_there_only_for_what_needs_them_and_outside_of_all_values() -> None:
    values = np.array([0.0, 1e-3, 100.0])
    scale = scale_of(values, ALL, ["float16"], non_finite=True)
    assert scale.top is not None
    assert scale.bottom is not None
    assert scale.low < scale.bottom < math.log10(FP16.smallest_subnormal)
    assert scale.high > scale.top > math.log10(FP16.max)
    plain = scale_of(values[1:], ALL, ["float16"], non_finite=False)
    assert (plain.top, plain.bottom) == (None, None)


@pytest.mark.parametrize("values", [[], [0.0], [1.0], [1e-40, 1e38], [5e-324, 1.7e308]], ids=str)
def test_any_values_have_a_scale_with_a_few_ticks(values: list[float]) -> None:
    scale = scale_of(np.array(values), ALL, ["float16", "int64", "NoneType"], non_finite=True)
    places, words = scale.ticks
    assert scale.low < scale.high
    assert len(places) == len(words) <= 16
    assert "inf, nan" in words
    assert ("0" in words) == (0.0 in values)
    assert len(set(words)) == len(words)


def test_the_last_of_a_long_tail_lies_on_the_rail_which_then_says_so() -> None:
    tails = np.array([1e-6] * 99 + [1e-30])
    scale = scale_of(np.array([1.0, 100.0]), ALL, ["float16"], False, tails=tails)
    assert scale.floor == -6
    assert scale.low > -10
    assert scale.ticks[1][0] == "<10\u207b\u2076"


def test_a_tail_that_is_not_long_or_no_tail_is_in_view() -> None:
    for values, tails in (([1.0], [1e-6, 1e-8]), ([1.0, 1e-30], [1e-6])):
        scale = scale_of(np.array(values), ALL, ["float16"], False, tails=np.array(tails))
        assert scale.bottom is None
        assert scale.low < min(np.log10([*values, *tails]))
