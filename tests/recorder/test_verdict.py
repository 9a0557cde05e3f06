"""The verdict on a dump: where the first bad value was born or came in, how it grew, how it spread."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.schema import (
    DUMP_SCHEMA,
    BatchInfo,
    ModuleInfo,
    Phase,
    Role,
    RunInfo,
    SilentWarning,
    Suppressed,
    Trigger,
    TriggerKind,
)
from recorder.verdict import Verdict, diagnose, headline
from tests.recorder.diagnosis_rows import Row, info, linear, overflow_at, row, table

FF = "encoder.block.2.ff"
WO = f"{FF}.wo"


def feed_forward(seq: int, batch: int, peak: float, **output: Any) -> list[Row]:
    """A gated feed-forward of one batch, whose `wo` puts out `peak`."""
    return [
        *linear(seq, f"{FF}.norm", 10.0, 2.5, batch=batch, module_class="RMSNorm"),
        *linear(seq + 1, f"{FF}.wi", 2.5, peak / 500, batch=batch),
        *linear(seq + 2, WO, peak / 600, peak, batch=batch, **output),
    ]


def climbing() -> list[Row]:
    """Three healthy batches and one whose last layer passes float16's limit."""
    rows = [one for batch, peak in enumerate((9.1e3, 2e4, 5.1e4)) for one in feed_forward(10 * batch, batch, peak)]
    return rows + feed_forward(30, 3, 6.1e4, posinf=3, origin=True)


def verdict_at_last(rows: list[Row], **facts: Any) -> Verdict:
    """The verdict when the last row was the trigger."""
    return diagnose(table(rows), info(overflow_at(rows[-1]), **facts))


def weight(seq: int, module: str, **changes: Any) -> Row:
    return row(seq, module, "parameter", "weight", **changes)


# what was born


def test_origin_is_the_trigger_s_place_and_was_not_inherited() -> None:
    verdict = verdict_at_last(climbing())
    assert not verdict.inherited
    assert verdict.origin == {
        "batch": 3,
        "step": 0,
        "seq": 32,
        "call": 0,
        "phase": "forward",
        "module": WO,
        "role": "output",
        "key": "",
    }


def test_first_lines_say_what_where_and_against_which_limit() -> None:
    lines = verdict_at_last(climbing()).lines
    assert lines[0] == f"inf in output of {WO} (Linear), forward, batch 3, step 0."
    assert lines[1] == "3 of 64 elements, its finite values reach 6.1e+04 in float16, limit 6.55e+04."
    assert lines[2].startswith("Born here: inputs (up to 102), parameters (up to 0.5) and buffers")


def test_growth_over_frames_names_the_modules_on_the_way() -> None:
    assert "Over frames, abs max: 2.5 (norm) -> 122 (wi) -> inf." in verdict_at_last(climbing()).lines


def test_growth_over_batches_gives_the_same_value_in_the_batches_before() -> None:
    text = verdict_at_last(climbing()).text
    assert "Over batches, abs max of the same value: 9.1e+03, 2e+04, 5.1e+04 in the last 3 batches, now inf." in text


def test_cause_and_advice_are_said() -> None:
    verdict = verdict_at_last(climbing())
    assert verdict.readings[0].pattern == "dtype limit"
    assert "Very likely: the values outgrew float16, whose limit is 6.55e+04." in verdict.lines
    assert any(line.startswith("Try: run this module in bfloat16") for line in verdict.lines)


def test_a_value_made_between_modules_is_laid_to_the_module_around() -> None:
    rows = [
        *linear(1, "net.inp", 1.0, 1.0),
        row(2, "net.block", "input", "rel_bias", None, nan=4, module_class="Block"),
        row(3, "net", "input", "weight", 0.0, abs_min=0.0, module_class="Net"),
    ]
    verdict = diagnose(table(rows), info(overflow_at(rows[3])))
    assert not verdict.inherited
    assert "Made between modules, by the own code of net (Net): no module put it out." in verdict.lines


def test_containers_that_never_run_are_not_laid_to() -> None:
    modules = (ModuleInfo("net", "Net", "", 1), ModuleInfo("net.blocks", "ModuleList", "net", 2))
    rows = [row(2, "net.blocks.0", "input", "0", None, nan=4, module_class="Block")]
    assert "by the own code of net (Net)" in verdict_at_last(rows, modules=modules).text


def test_what_runs_inside_the_module_that_received_it_is_not_on_the_way() -> None:
    rows = [
        *linear(1, "inp", 1.0, 7.0),
        *linear(2, "block.proj", 1.0, 9.0),
        row(3, "block", "input", "bias", None, nan=4),
    ]
    assert "Over frames, abs max: 7 (inp) -> nan." in verdict_at_last(rows).lines


# what came in


def test_bad_data_is_inherited_from_the_data() -> None:
    verdict = verdict_at_last([row(1, "", "input", "0", nan=3, batch=3)])
    assert verdict.inherited
    assert verdict.lines[0] == "nan in input 0 of the model itself (Linear), forward, batch 3, step 0."
    assert verdict.lines[2].startswith("Inherited from the data")


def test_a_parameter_that_was_bad_before_the_first_batch_has_two_readings() -> None:
    verdict = verdict_at_last([weight(1, "", abs_max=None, nan=64)])
    assert "Inherited: this parameter was bad before the first batch ran." in verdict.lines
    assert [one.pattern for one in verdict.readings] == ["never initialised", "broken checkpoint"]


def test_a_weight_says_when_it_was_last_finite() -> None:
    verdict = verdict_at_last([weight(1, "fc", batch=6, phase="optimizer"), weight(2, "fc", batch=7, nan=1)])
    assert verdict.inherited
    assert "Inherited: this parameter was finite in batch 6, and bad when batch 7 ran." in verdict.lines


def test_a_bad_buffer_is_inherited() -> None:
    verdict = verdict_at_last([row(1, "norm", "buffer", "running_var", nan=1, module_class="BatchNorm1d")])
    assert verdict.inherited
    assert {one.pattern for one in verdict.readings} == {"single-sample norm", "bad buffer"}


def test_a_step_with_bad_gradients_inherited_them() -> None:
    rows = [
        row(1, "fc", "gradient", "weight", posinf=1, phase="backward"),
        weight(2, "fc", phase="optimizer", nan=1),
    ]
    verdict = verdict_at_last(rows)
    assert verdict.inherited
    assert "Inherited from the gradients" in verdict.text


def test_a_step_with_finite_gradients_did_it_itself() -> None:
    rows = [row(1, "fc", "gradient", "weight", phase="backward"), weight(2, "fc", phase="optimizer", nan=1)]
    verdict = verdict_at_last(rows)
    assert not verdict.inherited
    assert "no gradient of this batch was bad (1 seen); it broke 1 of 1 parameter." in verdict.text


def test_evicted_frames_are_mentioned_where_the_birth_may_lie_among_them() -> None:
    rows = [row(9, "fc", "input", "0", nan=1, batch=5), row(9, "fc", "output", nan=1, batch=5)]
    verdict = verdict_at_last(rows, evicted=1200)
    assert verdict.inherited
    assert "It may have been born earlier: 1,200 records from before batch 5 evicted." in verdict.lines


def test_evicted_frames_do_not_matter_to_what_was_born_in_the_dump() -> None:
    assert "evicted" not in verdict_at_last(climbing(), evicted=1200).text


# the backward phase


def test_a_backward_birth_is_read_with_its_forward() -> None:
    rows = [
        row(1, "feat", "input", "0", abs_min=0.0, dtype="float32", module_class="Root"),
        row(1, "feat", "output", dtype="float32", module_class="Root"),
        row(2, "feat", "grad_output", dtype="float32", phase="backward", module_class="Root"),
        row(2, "feat", "grad_input", "0", dtype="float32", phase="backward", posinf=1, module_class="Root"),
    ]
    verdict = verdict_at_last(rows)
    assert not verdict.inherited
    assert verdict.readings[0].pattern == "slope at zero"
    assert "the gradient that came into this module was finite" in verdict.text


def test_two_readings_are_both_said() -> None:
    rows = [
        row(1, "feat", "input", "0", dtype="float32"),
        row(2, "feat", "grad_input", "0", dtype="float32", phase="backward", nan=1),
    ]
    text = verdict_at_last(rows).text
    assert "Likely: torch.where" in text
    assert "Possible: an eigen or singular value decomposition" in text


def test_the_call_whose_gradient_it_is_gives_the_forward() -> None:
    rows = [
        row(1, "feat", "input", "0", call=0, dtype="float32"),
        row(2, "feat", "input", "0", call=1, dtype="float32", abs_min=0.0),
        row(3, "feat", "grad_input", "0", call=1, dtype="float32", phase="backward", posinf=1),
    ]
    assert verdict_at_last(rows).readings[0].pattern == "slope at zero"
    rows[2]["call"] = 0
    assert verdict_at_last(rows).readings[0].pattern != "slope at zero"


# spread


def test_spread_names_the_later_modules_and_the_model_s_output() -> None:
    rows = [*linear(1, "a", 1.0, 2.0, posinf=1), *linear(2, "b", 1.0, 2.0, nan=1), row(3, "", "output", nan=4)]
    verdict = diagnose(table(rows), info(overflow_at(rows[2])))
    expected = "It spread to 2 of 2 later frames, as far as the model's output: b, the model."
    assert expected in verdict.lines


def test_spread_that_was_clamped_went_no_further() -> None:
    rows = [*linear(1, "a", 1.0, 2.0, posinf=1), *linear(2, "clip", 1.0, 2.0)]
    verdict = diagnose(table(rows), info(overflow_at(rows[2])))
    assert "It went no further: 1 later frame in the dump came out finite." in verdict.lines


def test_a_backward_birth_whose_step_is_still_to_come_has_not_spread_so_far() -> None:
    rows = [row(seq, "fc", "gradient", key, phase="backward", posinf=1 - seq) for seq, key in enumerate("ab")]
    verdict = diagnose(table(rows), info(overflow_at(rows[0])))
    assert "So far it did not spread: 1 later frame in the dump came out finite." in verdict.lines


def test_a_dump_that_ends_with_the_birth_does_not_claim_a_spread() -> None:
    assert "The dump ends with it: how it would have spread is not recorded." in verdict_at_last(climbing()).lines


# without an overflow trigger


def trace(batch: int = 3) -> Trigger:
    return Trigger(TriggerKind.TRACED_BATCH.value, batch, batch)


def test_a_healthy_batch_names_the_value_nearest_to_its_limit() -> None:
    rows = climbing()[:-9]
    verdict = diagnose(table(rows), info(trace(2)))
    assert verdict == Verdict(None, False, verdict.lines, ())
    assert verdict.lines == (
        "Healthy: nothing went bad in 9 frames of batches 0 to 2 (traced batch 2).",
        f"Nearest to a limit: 5.1e+04 in float16, 0.4 binades left below 6.55e+04: output of {WO}, batch 2.",
        "Its abs max in the batches before: 9.1e+03, 2e+04.",
    )


def test_nearest_is_measured_in_binades_not_in_size() -> None:
    rows = [row(1, "wide", "output", abs_max=1e30, dtype="float32"), row(2, "narrow", "output", abs_max=6e4)]
    assert "output of narrow" in diagnose(table(rows), info(trace())).text


def test_the_first_effect_is_found_without_a_trigger() -> None:
    verdict = diagnose(table(climbing()), info(trace()))
    assert verdict.origin is not None
    assert verdict.origin["module"] == WO
    assert not verdict.inherited


def test_a_bad_input_that_came_from_outside_is_found_in_the_frames_around() -> None:
    rows = [
        row(1, "net.fc", "input", "0", nan=1),
        row(1, "net.fc", "output", nan=1),
        row(2, "net", "input", "0", nan=1),
        row(3, "", "input", "x", nan=1),
    ]
    verdict = diagnose(table(rows), info(trace()))
    assert verdict.origin is not None
    assert (verdict.origin["module"], verdict.origin["role"], verdict.origin["key"]) == ("", "input", "x")
    assert verdict.inherited


def test_a_bad_weight_is_found_behind_the_output_that_it_spoilt() -> None:
    rows = [weight(1, "fc", nan=1), row(1, "fc", "output", nan=4)]
    verdict = diagnose(table(rows), info(trace()))
    assert verdict.origin is not None
    assert (verdict.origin["role"], verdict.origin["key"]) == ("parameter", "weight")


def test_a_bad_input_without_effect_is_no_origin_but_is_told() -> None:
    rows = [row(1, "", "input", "target", nan=2), row(1, "", "output")]
    verdict = diagnose(table(rows), info(trace()))
    assert verdict.origin is None
    assert "Non-finite values came in and had no effect: 1 record, first input target" in verdict.text


def test_gradients_of_a_skipped_step_are_the_scaler_s_business() -> None:
    rows = [row(1, "fc", "gradient", "weight", phase="backward", posinf=1)]
    skipped = BatchInfo(0, 0, True, loss_scale=65536.0, skipped=True)
    verdict = diagnose(table(rows), info(trace(), batches=(skipped,)))
    assert verdict.origin is None
    assert "The scaler skipped 1 of 1 step, the last 1 in a row; its scale is 6.55e+04." in verdict.lines


def test_the_same_gradients_count_when_the_step_was_taken() -> None:
    rows = [row(1, "fc", "gradient", "weight", phase="backward", posinf=1)]
    taken = BatchInfo(0, 0, True, loss_scale=65536.0, skipped=False)
    assert diagnose(table(rows), info(trace(), batches=(taken,))).origin is not None


def test_expected_values_are_counted_and_never_an_origin() -> None:
    rows = [row(1, "attn", "input", "mask", 0.0, neginf=4, expected=True), row(1, "attn", "output")]
    verdict = diagnose(table(rows), info(trace()))
    assert verdict.origin is None
    assert "Expected non-finite values, such as masks: 1 record, in attn." in verdict.lines


def test_warnings_are_counted_by_kind() -> None:
    warning = SilentWarning("zeroed", 1, "forward", "norm", "output", "", "norm handed out zeros")
    text = diagnose(table([row(1, "norm", "output")]), info(trace(), warnings=(warning, warning))).text
    assert "Warnings: zeroed (2). First: norm handed out zeros" in text


def test_an_exception_names_the_open_module_and_what_it_had_received() -> None:
    rows = [*linear(1, "a", 1.0, 2.0), row(2, "b", "input", "0", module_class="Block")]
    trigger = Trigger(TriggerKind.EXCEPTION.value, 0, 0, 2, 0, "forward", "b")
    lines = diagnose(table(rows), info(trigger)).lines
    assert lines[0].startswith("An exception ended the run inside b (Block), forward, batch 0; nothing went bad")
    assert "It had received: 0 float16 (4, 16)." in lines


def test_an_exception_in_a_batch_norm_of_one_sample_has_its_reading() -> None:
    rows = [row(2, "norm", "input", "0", shape="(1, 16)", module_class="BatchNorm1d")]
    trigger = Trigger(TriggerKind.EXCEPTION.value, 0, 0, 2, 0, "forward", "norm")
    assert "batch statistics of a single sample" in diagnose(table(rows), info(trigger)).text


def test_an_exception_after_a_birth_tells_both() -> None:
    rows = [*linear(1, "a", 1.0, 2.0, posinf=1), row(2, "b", "input", "0", posinf=1, module_class="Block")]
    trigger = Trigger(TriggerKind.EXCEPTION.value, 0, 0, 2, 0, "forward", "b")
    verdict = diagnose(table(rows), info(trigger))
    assert verdict.origin is not None
    assert verdict.origin["module"] == "a"
    assert "An exception ended the run inside b (Block), forward, batch 0." in verdict.lines


@pytest.mark.parametrize(
    ("kind", "begins"),
    [("manual", "Dumped by hand"), ("signal", "Dumped on a signal"), ("recovered", "Recovered from the ring")],
)
def test_the_reason_for_the_dump_comes_first(kind: str, begins: str) -> None:
    assert diagnose(table(linear(1, "a", 1.0, 2.0)), info(Trigger(kind))).lines[0].startswith(begins)


def test_a_recovered_ring_says_how_far_the_run_had_come() -> None:
    rows = linear(1, "a", 1.0, 2.0, batch=7)
    assert "Last frame: a, forward, batch 7." in diagnose(table(rows), info(Trigger("recovered"))).lines[0]


# the table


def test_limits_that_went_down_with_the_process_are_known_for_common_dtypes() -> None:
    rows = climbing()
    assert diagnose(table(rows), RunInfo("run-a", trigger=overflow_at(rows[-1]))).text == verdict_at_last(rows).text


def test_texts_may_be_plain_or_categorical_and_rows_in_any_order() -> None:
    trigger = info(overflow_at(climbing()[-1]))
    expected = diagnose(table(climbing()), trigger)
    assert diagnose(table(climbing(), categorical=False), trigger) == expected
    assert diagnose(table(climbing()[::-1]).sort_values("key", kind="stable"), trigger).origin == expected.origin


def test_rows_of_other_ranks_are_left_out() -> None:
    other = [{**one, "rank": 1, "module": "elsewhere"} for one in climbing()]
    verdict = diagnose(table(climbing() + other), info(overflow_at(climbing()[-1])))
    assert verdict == verdict_at_last(climbing())


def test_a_trigger_whose_record_is_not_in_the_dump_still_has_its_place() -> None:
    trigger = Trigger("overflow", 4, 2, 99, 0, "forward", "gone", "output", "")
    verdict = diagnose(table(climbing()[:9]), info(trigger))
    assert verdict.origin is not None
    assert verdict.origin["module"] == "gone"
    assert verdict.lines[0] == "a non-finite value in output of gone, forward, batch 4, step 2."


def test_an_earlier_overflow_in_the_dump_does_not_hide_the_one_that_tripped() -> None:
    rows = [*linear(1, "old", 1.0, 2.0, posinf=1), *linear(2, "new", 1.0, 2.0, nan=1, batch=1)]
    assert verdict_at_last(rows).origin == verdict_at_last(rows[3:]).origin


# the headline


def test_headline_is_one_line_with_place_and_limit() -> None:
    said = headline(table(climbing()), info(overflow_at(climbing()[-1])))
    assert said == (
        f"inf in output of {WO} (Linear), forward, batch 3, step 0: "
        "3 of 64 elements, its finite values reach 6.1e+04 in float16, limit 6.55e+04"
    )


def test_headline_keeps_a_long_module_name_whole() -> None:
    name = "base_model.model.model.language_model.layers.31.self_attn.q_proj.lora_magnitude_vector.default"
    rows = linear(1, name, 1.0, None, posinf=64)
    assert name in headline(table(rows), info(overflow_at(rows[-1])))


def test_headline_gives_the_input_s_size_where_no_element_is_finite() -> None:
    rows = linear(1, "exp", 150.0, None, posinf=64)
    assert "64 of 64 elements, abs max before 150 in float16" in headline(table(rows), info(overflow_at(rows[-1])))


def test_headline_of_a_dump_without_overflow_says_so() -> None:
    assert headline(table(climbing()[:9]), info(trace(0))).startswith("Healthy")


# whatever a dump may hold

_ANY_FLOAT = st.one_of(st.none(), st.sampled_from([0.0, 1e-40, 1.0, 65504.0, 3e38, 1e308, math.inf, math.nan]))
_ANY_COUNT = st.one_of(st.none(), st.integers(0, 1000))
_ANY_BOOL = st.one_of(st.none(), st.booleans())
_NAMES = st.sampled_from(["", "a", "a.b", "a.b.c", "x" * 200, "ümlaut.0"])
_SHAPES = st.sampled_from([None, "()", "(0,)", "(1, 16)", "(4, 16)", "((2, 3), (4, 3))", "odd"])
_CLASSES = st.sampled_from(["Linear", "LayerNorm", "BatchNorm1d", "MultiheadAttention", "RNN", "CTCLoss", "Whiten"])


@st.composite
def _rows(draw: st.DrawFn) -> Row:
    return {
        **dict.fromkeys(DUMP_SCHEMA.names),
        "rank": draw(st.integers(0, 1)),
        "batch": draw(st.integers(0, 2)),
        "step": draw(st.integers(0, 2)),
        "seq": draw(st.integers(0, 6)),
        "call": draw(st.integers(0, 1)),
        "phase": draw(st.sampled_from([one.value for one in Phase])),
        "training": draw(_ANY_BOOL),
        "module": draw(_NAMES),
        "module_class": draw(_CLASSES),
        "role": draw(st.sampled_from([one.value for one in Role])),
        "key": draw(st.sampled_from(["", "0", "weight", "weight.exp_avg_sq", "k" * 90])),
        "dtype": draw(st.sampled_from(["float16", "float32", "int64", "bool", "NoneType", "float7"])),
        "shape": draw(_SHAPES),
        "numel": draw(_ANY_COUNT),
        "abs_min": draw(_ANY_FLOAT),
        "abs_max": draw(_ANY_FLOAT),
        "num_nan": draw(_ANY_COUNT),
        "num_posinf": draw(_ANY_COUNT),
        "num_neginf": draw(_ANY_COUNT),
        "flagged": draw(_ANY_BOOL),
        "expected": draw(_ANY_BOOL),
    }


_NUMBERS = st.one_of(st.none(), st.integers(0, 6))
_TRIGGERS = st.builds(
    Trigger,
    kind=st.sampled_from([*(one.value for one in TriggerKind), "of a newer version"]),
    batch=_NUMBERS,
    step=_NUMBERS,
    seq=_NUMBERS,
    call=_NUMBERS,
    phase=st.one_of(st.none(), st.sampled_from([one.value for one in Phase])),
    module=st.one_of(st.none(), _NAMES),
    role=st.one_of(st.none(), st.sampled_from([one.value for one in Role])),
    key=st.one_of(st.none(), st.just("0")),
)
_BATCHES = st.builds(
    BatchInfo,
    batch=st.integers(0, 2),
    step=st.integers(0, 2),
    training=st.booleans(),
    learning_rate=_ANY_FLOAT,
    loss_scale=_ANY_FLOAT,
    skipped=_ANY_BOOL,
)
_SUPPRESSED = Suppressed("additive mask", "a.b", "input", "mask", 3)
_INFOS = st.builds(
    lambda trigger, batches, evicted, known: replace(
        info(trigger) if known else RunInfo("run-a", trigger=trigger),
        batches=tuple(batches),
        evicted=evicted,
        suppressed=(_SUPPRESSED,) if known else (),
    ),
    st.one_of(st.none(), _TRIGGERS),
    st.lists(_BATCHES, max_size=5),
    st.integers(0, 10),
    st.booleans(),
)


@given(rows=st.lists(_rows(), max_size=12), about=_INFOS, categorical=st.booleans())
@settings(max_examples=120, deadline=None)
def test_any_dump_has_a_verdict_of_one_to_ten_short_lines(rows: list[Row], about: RunInfo, categorical: bool) -> None:
    verdict = diagnose(table(rows, categorical), about)
    assert 1 <= len(verdict.lines) <= 10
    assert all(0 < len(line) <= 140 and "\n" not in line for line in verdict.lines)
    assert verdict.text == "\n".join(verdict.lines)
    assert "\n" not in headline(table(rows, categorical), about)


@given(rows=st.lists(_rows(), min_size=1, max_size=12), about=_INFOS)
@settings(max_examples=40, deadline=None)
def test_an_origin_holds_the_places_of_a_trigger(rows: list[Row], about: RunInfo) -> None:
    origin = diagnose(table(rows), about).origin
    assert origin is None or set(origin) == {"batch", "step", "seq", "call", "phase", "module", "role", "key"}


def test_a_table_without_columns_has_a_verdict() -> None:
    assert diagnose(pd.DataFrame(), info()).lines == ("No overflow: nothing went bad in an empty dump.",)
