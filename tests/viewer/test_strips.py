"""Strips: what ran beside the frames, only what was seen, and what went wrong in it."""

from __future__ import annotations

import math

from recorder.schema import BatchInfo
from viewer.strips import strips_figure, strips_height, strips_of

BATCHES = (
    BatchInfo(0, 0, True, loss=5.0, loss_scale=65536.0, skipped=False),
    BatchInfo(1, 1, True, loss=4.0, loss_scale=65536.0, skipped=True),
    BatchInfo(2, 1, True, loss=math.nan, loss_scale=32768.0, skipped=False),
)


def test_only_what_some_batch_has_a_number_for_is_a_strip() -> None:
    assert strips_of(BATCHES) == ["loss", "loss_scale"]
    assert strips_of(()) == []
    assert strips_height(()) == 0


def test_a_non_finite_loss_and_a_skipped_step_are_crosses() -> None:
    crosses = {trace.name: trace.x.tolist() for trace in strips_figure(BATCHES).data if trace.mode == "markers"}
    assert crosses == {"loss is non-finite": [2], "step skipped": [1]}


def test_the_batches_in_view_stand_on_a_band() -> None:
    (band,) = strips_figure(BATCHES, (1, 2)).layout.shapes
    assert (band.x0, band.x1) == (0.5, 2.5)


def test_a_constant_and_a_single_number_have_a_strip() -> None:
    assert strips_figure((BatchInfo(4, 4, True, learning_rate=0.0),)).data[0].y.tolist() == [0.0]


def test_strips_lie_one_below_the_other_on_one_axis() -> None:
    layout = strips_figure(BATCHES).layout
    assert layout.yaxis.domain[0] > layout.yaxis2.domain[1]
    assert layout.xaxis.anchor == "y2"
