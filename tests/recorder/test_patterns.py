"""Each pattern of the diagnosis: what it takes for a reading, and what it must not take for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from recorder.diagnosis import backward_patterns as backward
from recorder.diagnosis import forward_patterns as forward
from recorder.diagnosis import step_patterns as steps
from recorder.diagnosis.birth import Source
from recorder.diagnosis.evidence import Evidence, Step
from recorder.diagnosis.patterns import plausible, readings
from recorder.diagnosis.reading import Confidence, Reading
from recorder.schema import BatchInfo
from tests.recorder.diagnosis_rows import bad, evidence, value

Pattern = Callable[[Evidence], Reading | None]

SMALL = value("input", "0", 2.0)
WITH_ZERO = value("input", "0", 2.0, abs_min=0.0)
WEIGHT = value("parameter", "weight", 0.5, shape="(16, 16)")
LOSS: dict[str, Any] = {"module": "criterion", "module_class": "CrossEntropyLoss", "numel": 1, "shape": "()"}
ATTENTION: dict[str, Any] = {"module": "attn", "module_class": "MultiheadAttention"}
FP32: dict[str, Any] = {"dtype": "float32"}
BACKWARD: dict[str, Any] = {"phase": "backward", **FP32}
STEP: dict[str, Any] = {"phase": "optimizer"}


def facts(batch: int = 0, **changes: Any) -> BatchInfo:
    return BatchInfo(batch, batch, True, **changes)


def masked(**changes: Any) -> Any:
    return value("input", "mask", 0.0, abs_min=0.0, **changes)


FITS: list[tuple[str, Pattern, Evidence, Confidence]] = [
    (
        "inf beside finite values at float16's limit",
        forward.dtype_limit,
        evidence(bad(abs_max=6.3e4, num_posinf=3), WEIGHT, SMALL),
        Confidence.VERY_LIKELY,
    ),
    (
        "inf everywhere, but inputs times weights can pass the limit",
        forward.dtype_limit,
        evidence(bad(abs_max=None, num_neginf=64), replace(WEIGHT, abs_max=300.0), value("input", "0", 900.0)),
        Confidence.VERY_LIKELY,
    ),
    (
        "float32 has a limit too",
        forward.dtype_limit,
        evidence(bad(abs_max=3e38, num_posinf=1, **FP32), value("input", "0", 1e30, **FP32)),
        Confidence.LIKELY,
    ),
    (
        "many small inputs, one infinite output",
        forward.reduction_overflow,
        evidence(bad(abs_max=None, num_posinf=1, numel=1), value("input", "0", 4.0, numel=32768)),
        Confidence.VERY_LIKELY,
    ),
    (
        "a sum of squares",
        forward.reduction_overflow,
        evidence(bad(abs_max=None, num_posinf=1, numel=1), value("input", "0", 9.0, numel=4096)),
        Confidence.LIKELY,
    ),
    (
        "NaN from inputs whose squares do not fit",
        forward.intermediate_overflow,
        evidence(bad(), value("input", "0", 900.0)),
        Confidence.LIKELY,
    ),
    (
        "a float16 norm that was fed a row of zeros",
        forward.vanishing_eps,
        evidence(bad(module_class="LayerNorm"), WITH_ZERO),
        Confidence.VERY_LIKELY,
    ),
    (
        "a float16 norm of values whose squares vanish",
        forward.vanishing_eps,
        evidence(bad(module_class="RMSNorm"), value("input", "0", 2e-4, abs_min=1e-4)),
        Confidence.LIKELY,
    ),
    (
        "attention with an additive mask",
        forward.fully_masked_row,
        evidence(bad(**ATTENTION), SMALL, masked(num_neginf=8, flagged=True, expected=True)),
        Confidence.VERY_LIKELY,
    ),
    (
        "attention with a mask that is true everywhere",
        forward.fully_masked_row,
        evidence(bad(**ATTENTION), SMALL, value("input", "key_padding_mask", 1.0, abs_min=1.0, dtype="bool")),
        Confidence.VERY_LIKELY,
    ),
    (
        "attention with a mixed boolean mask",
        forward.fully_masked_row,
        evidence(bad(**ATTENTION), SMALL, value("input", "key_padding_mask", 1.0, abs_min=0.0, dtype="bool")),
        Confidence.LIKELY,
    ),
    (
        "attention whose mask nobody saw",
        forward.fully_masked_row,
        evidence(bad(**ATTENTION), SMALL),
        Confidence.POSSIBLE,
    ),
    (
        "-inf from an exact zero",
        forward.log_of_zero,
        evidence(bad(num_neginf=2), WITH_ZERO),
        Confidence.VERY_LIKELY,
    ),
    (
        "-inf from a loss that takes logits",
        forward.log_of_zero,
        evidence(bad(num_neginf=1, **LOSS), SMALL),
        Confidence.LIKELY,
    ),
    (
        "a log variance of 300",
        forward.exp_overflow,
        evidence(bad(num_posinf=2, module_class="Reparam", **FP32), value("input", "1", 300.0, **FP32)),
        Confidence.VERY_LIKELY,
    ),
    (
        "inf in float32 from inputs in the hundreds",
        forward.exp_overflow,
        evidence(bad(num_posinf=2, **FP32), value("input", "1", 300.0, **FP32)),
        Confidence.LIKELY,
    ),
    (
        "both nan and inf where there was a zero",
        forward.division_by_zero,
        evidence(bad(num_nan=1, num_posinf=1), WITH_ZERO),
        Confidence.LIKELY,
    ),
    (
        "a quantiser with a row of zeros",
        forward.division_by_zero,
        evidence(bad(module_class="FakeQuant"), WITH_ZERO),
        Confidence.LIKELY,
    ),
    (
        "a mask that is False everywhere",
        forward.empty_selection,
        evidence(bad(numel=1), SMALL, value("input", "valid", 0.0, abs_min=0.0, dtype="bool")),
        Confidence.VERY_LIKELY,
    ),
    (
        "a tensor without elements",
        forward.empty_selection,
        evidence(bad(numel=1), value("input", "0", None, numel=0, shape="(0, 4)")),
        Confidence.VERY_LIKELY,
    ),
    (
        "labels that are all -100",
        forward.labels_ignored,
        evidence(bad(**LOSS), SMALL, value("input", "1", 100.0, abs_min=100.0, dtype="int64")),
        Confidence.VERY_LIKELY,
    ),
    (
        "a batch norm of one sample",
        forward.single_sample_norm,
        evidence(bad(module_class="BatchNorm1d"), value("input", "0", 2.0, shape="(1, 16)")),
        Confidence.VERY_LIKELY,
    ),
    (
        "running statistics that went bad",
        forward.single_sample_norm,
        evidence(bad("buffer", "running_var", module_class="BatchNorm2d"), source=Source.BUFFER),
        Confidence.LIKELY,
    ),
    (
        "positions beyond float16",
        forward.integer_beyond_dtype,
        evidence(bad(module_class="Rope"), value("input", "0", 65531.0, dtype="int64")),
        Confidence.VERY_LIKELY,
    ),
    (
        "CTC",
        forward.target_does_not_fit,
        evidence(bad(abs_max=None, num_posinf=1, module_class="CTCLoss"), SMALL),
        Confidence.VERY_LIKELY,
    ),
    (
        "a recurrent state that grew",
        forward.recurrent_growth,
        evidence(bad(module_class="RNN"), SMALL, history=((0, 1e4), (1, 1e10), (2, 1e30))),
        Confidence.VERY_LIKELY,
    ),
    (
        "a recurrent state without history",
        forward.recurrent_growth,
        evidence(bad(module_class="GRU"), SMALL),
        Confidence.LIKELY,
    ),
    (
        "growth batch after batch",
        steps.training_diverges,
        evidence(bad(num_posinf=1), SMALL, history=((7, 9.1e3), (8, 2e4), (9, 5.1e4))),
        Confidence.LIKELY,
    ),
    (
        "an infinite slope at 0",
        backward.slope_at_zero,
        evidence(bad("grad_input", "0", num_posinf=1, **BACKWARD), replace(WITH_ZERO, **FP32)),
        Confidence.VERY_LIKELY,
    ),
    (
        "1/x of a subnormal does not fit",
        backward.slope_at_zero,
        evidence(bad("grad_input", "0", num_neginf=1, **BACKWARD), value("input", "0", abs_min=3e-40, **FP32)),
        Confidence.VERY_LIKELY,
    ),
    (
        "the square root of a parameter that is 0",
        backward.slope_at_zero,
        evidence(
            bad("gradient", "scale", None, num_posinf=1, **BACKWARD),
            value("parameter", "scale", 0.0, abs_min=0.0, shape="()", **FP32),
        ),
        Confidence.VERY_LIKELY,
    ),
    (
        "NaN where no argument was 0",
        backward.dead_branch,
        evidence(bad("grad_input", "0", **BACKWARD), value("input", "0", **FP32), value("output", **FP32)),
        Confidence.LIKELY,
    ),
    (
        "NaN where an argument was 0 may be a branch too",
        backward.dead_branch,
        evidence(bad("grad_input", "0", **BACKWARD), replace(WITH_ZERO, **FP32)),
        Confidence.POSSIBLE,
    ),
    (
        "NaN targets and a finite loss",
        backward.masked_too_late,
        evidence(bad("grad_input", "0", **BACKWARD), bad("input", "1"), value("output")),
        Confidence.VERY_LIKELY,
    ),
    (
        "a whitening layer",
        backward.equal_eigenvalues,
        evidence(bad("grad_input", "0", module_class="Whiten", **BACKWARD), value("input", "0", **FP32)),
        Confidence.LIKELY,
    ),
    (
        "any layer may decompose",
        backward.equal_eigenvalues,
        evidence(bad("grad_input", "0", **BACKWARD), value("input", "0", **FP32)),
        Confidence.POSSIBLE,
    ),
    (
        "a float16 gradient at its limit",
        backward.gradient_limit,
        evidence(bad("grad_input", "0", 6e4, num_posinf=1, phase="backward"), WEIGHT, SMALL),
        Confidence.VERY_LIKELY,
    ),
    (
        "a gradient that was bad when it entered the model",
        backward.gradient_from_outside,
        evidence(bad("grad_output", module="", **BACKWARD), source=Source.AFTER),
        Confidence.VERY_LIKELY,
    ),
    (
        "a learning rate of nan",
        steps.bad_learning_rate,
        evidence(bad("parameter", "weight", **STEP), batches=(facts(learning_rate=float("nan")),)),
        Confidence.CERTAIN,
    ),
    (
        "a learning rate of inf, seen in the next forward",
        steps.bad_learning_rate,
        evidence(
            bad("parameter", "weight", batch=1),
            source=Source.WEIGHT,
            batches=(facts(0, learning_rate=float("inf")), facts(1, learning_rate=0.1)),
        ),
        Confidence.CERTAIN,
    ),
    (
        "all parameters at once, at a high rate",
        steps.step_too_large,
        evidence(bad("parameter", "weight", **STEP), step=Step(9, 9, 9, 0), batches=(facts(learning_rate=100.0),)),
        Confidence.LIKELY,
    ),
    (
        "all parameters at once, at a usual rate",
        steps.step_too_large,
        evidence(bad("parameter", "weight", **STEP), step=Step(9, 9, 9, 0), batches=(facts(learning_rate=1e-3),)),
        Confidence.POSSIBLE,
    ),
    (
        "a second moment of 0 in float16",
        steps.vanishing_adam_eps,
        evidence(
            bad("parameter", "weight", **STEP),
            value("optimizer_state", "weight.exp_avg_sq", 1e-3, abs_min=0.0),
            step=Step(1, 1, 1, 0),
        ),
        Confidence.VERY_LIKELY,
    ),
    (
        "float16 weights and no optimizer state in the dump",
        steps.vanishing_adam_eps,
        evidence(bad("parameter", "weight", **STEP)),
        Confidence.LIKELY,
    ),
    (
        "one bad gradient, every weight lost",
        steps.clipped_by_bad_norm,
        evidence(bad("gradient", "weight", **BACKWARD), step=Step(9, 9, 9, 1)),
        Confidence.VERY_LIKELY,
    ),
    (
        "a gradient norm of inf",
        steps.clipped_by_bad_norm,
        evidence(bad("parameter", "weight", **STEP), batches=(facts(grad_norm=float("inf")),)),
        Confidence.LIKELY,
    ),
    (
        "a step with bad gradients",
        steps.bad_gradient_used,
        evidence(bad("parameter", "weight", **STEP), source=Source.GRADIENT, step=Step(9, 1, 9, 1)),
        Confidence.VERY_LIKELY,
    ),
    (
        "skips that do not end",
        steps.scaler_gives_up,
        evidence(
            bad("gradient", "weight", **BACKWARD),
            batches=tuple(facts(i, skipped=i > 0, loss_scale=2.0 ** (4 - i)) for i in range(5)),
        ),
        Confidence.VERY_LIKELY,
    ),
    (
        "NaN in the model's own input",
        steps.bad_data,
        evidence(bad("input", "0", module=""), source=Source.DATA),
        Confidence.CERTAIN,
    ),
    (
        "a parameter that is bad throughout",
        steps.never_initialised,
        evidence(bad("parameter", "bg", None, num_nan=64), source=Source.WEIGHT),
        Confidence.LIKELY,
    ),
    (
        "a parameter that is bad in one place",
        steps.broken_checkpoint,
        evidence(bad("parameter", "weight"), source=Source.WEIGHT),
        Confidence.LIKELY,
    ),
    (
        "a parameter that was bad when a later batch began",
        steps.broken_before,
        evidence(bad("parameter", "weight", batch=7), source=Source.WEIGHT),
        Confidence.LIKELY,
    ),
    (
        "a bad buffer",
        steps.bad_buffer,
        evidence(bad("buffer", "inv_freq"), source=Source.BUFFER),
        Confidence.LIKELY,
    ),
]

DOES_NOT_FIT: list[tuple[str, Pattern, Evidence]] = [
    ("NaN alone is no overflow", forward.dtype_limit, evidence(bad(abs_max=6e4), WEIGHT, SMALL)),
    ("small values all around", forward.dtype_limit, evidence(bad(abs_max=7.0, num_posinf=1), SMALL)),
    ("the dtype's limit is not known", forward.dtype_limit, evidence(bad(num_posinf=1, dtype="float7"), SMALL)),
    ("-inf of a logarithm", forward.dtype_limit, evidence(bad(abs_max=3.0, num_neginf=1), WITH_ZERO)),
    (
        "a sum that would fit",
        forward.reduction_overflow,
        evidence(bad(abs_max=None, num_posinf=1, numel=1), value("input", "0", 4.0, numel=512)),
    ),
    (
        "as many outputs as inputs",
        forward.reduction_overflow,
        evidence(bad(num_posinf=1, numel=32768), value("input", "0", 4.0, numel=32768)),
    ),
    (
        "float32 sums do not overflow so",
        forward.reduction_overflow,
        evidence(bad(num_posinf=1, numel=1, **FP32), value("input", "0", 4.0, numel=32768, **FP32)),
    ),
    ("squares that fit", forward.intermediate_overflow, evidence(bad(), value("input", "0", 200.0))),
    ("no zero in sight", forward.vanishing_eps, evidence(bad(module_class="LayerNorm"), SMALL)),
    (
        "float32 keeps an eps of 1e-12",
        forward.vanishing_eps,
        evidence(bad(module_class="LayerNorm", **FP32), replace(WITH_ZERO, **FP32)),
    ),
    ("not a norm", forward.vanishing_eps, evidence(bad(module_class="GELU"), WITH_ZERO)),
    ("not an attention", forward.fully_masked_row, evidence(bad(), masked(num_neginf=8, flagged=True, expected=True))),
    ("inf is no empty softmax", forward.fully_masked_row, evidence(bad(num_posinf=1, **ATTENTION), SMALL)),
    ("+inf is no logarithm of 0", forward.log_of_zero, evidence(bad(num_posinf=1, num_neginf=1), WITH_ZERO)),
    (
        "-inf of a product at the limit",
        forward.log_of_zero,
        evidence(bad(abs_max=6e4, num_neginf=1), WEIGHT, WITH_ZERO),
    ),
    (
        "exp(20) fits float32",
        forward.exp_overflow,
        evidence(bad(num_posinf=1, **FP32), value("input", "0", 20.0, **FP32)),
    ),
    (
        "a matrix product is no exp",
        forward.exp_overflow,
        evidence(bad(num_posinf=1, **FP32), replace(WEIGHT, **FP32), value("input", "0", 300.0, **FP32)),
    ),
    ("no zero to divide by", forward.division_by_zero, evidence(bad(num_nan=1, num_posinf=1), SMALL)),
    ("zeros into a matrix product", forward.division_by_zero, evidence(bad(), WEIGHT, WITH_ZERO)),
    (
        "some pixels are valid",
        forward.empty_selection,
        evidence(bad(numel=1), SMALL, value("input", "valid", 1.0, abs_min=0.0, dtype="bool")),
    ),
    (
        "an attention mask that hides nothing",
        forward.empty_selection,
        evidence(bad(**ATTENTION), SMALL, value("input", "mask", 0.0, abs_min=0.0, dtype="bool")),
    ),
    (
        "some labels count",
        forward.labels_ignored,
        evidence(bad(**LOSS), SMALL, value("input", "1", 100.0, abs_min=3.0, dtype="int64")),
    ),
    (
        "a batch norm of two samples",
        forward.single_sample_norm,
        evidence(bad(module_class="BatchNorm1d"), value("input", "0", 2.0, shape="(2, 16)")),
    ),
    (
        "one image has many pixels",
        forward.single_sample_norm,
        evidence(bad(module_class="BatchNorm2d"), value("input", "0", 2.0, shape="(1, 16, 8, 8)")),
    ),
    (
        "one sample in a layer norm",
        forward.single_sample_norm,
        evidence(bad(module_class="LayerNorm"), value("input", "0", 2.0, shape="(1, 16)")),
    ),
    (
        "positions that fit",
        forward.integer_beyond_dtype,
        evidence(bad(), value("input", "0", 4096.0, dtype="int64")),
    ),
    ("another loss", forward.target_does_not_fit, evidence(bad(num_posinf=1, **LOSS), SMALL)),
    ("not recurrent", forward.recurrent_growth, evidence(bad(module_class="Linear"), SMALL)),
    ("a group norm is no GRU", forward.recurrent_growth, evidence(bad(module_class="GroupNorm"), SMALL)),
    (
        "a value that went up and down",
        steps.training_diverges,
        evidence(bad(num_posinf=1), SMALL, history=((7, 5e4), (8, 2e4), (9, 5.1e4))),
    ),
    (
        "two batches are no trend",
        steps.training_diverges,
        evidence(bad(num_posinf=1), SMALL, history=((8, 2e3), (9, 5.1e4))),
    ),
    (
        "no argument near 0",
        backward.slope_at_zero,
        evidence(bad("grad_input", "0", num_posinf=1, **BACKWARD), value("input", "0", **FP32)),
    ),
    (
        "zeros into a matrix product have no slope",
        backward.slope_at_zero,
        evidence(bad("grad_input", "0", num_posinf=1, **BACKWARD), WEIGHT, replace(WITH_ZERO, **FP32)),
    ),
    (
        "another parameter is 0",
        backward.slope_at_zero,
        evidence(
            bad("gradient", "scale", None, num_posinf=1, **BACKWARD),
            value("parameter", "shift", 0.0, abs_min=0.0, shape="()", **FP32),
        ),
    ),
    ("inf is not 0 * inf", backward.dead_branch, evidence(bad("grad_input", "0", num_posinf=1, **BACKWARD), SMALL)),
    (
        "the NaN targets explain it",
        backward.dead_branch,
        evidence(bad("grad_input", "0", **BACKWARD), bad("input", "1"), value("output")),
    ),
    (
        "the forward was bad too",
        backward.masked_too_late,
        evidence(bad("grad_input", "0", **BACKWARD), bad("input", "1"), bad("output")),
    ),
    ("finite inputs", backward.masked_too_late, evidence(bad("grad_input", "0", **BACKWARD), SMALL, value("output"))),
    (
        "a matrix product decomposes nothing",
        backward.equal_eigenvalues,
        evidence(bad("grad_input", "0", **BACKWARD), WEIGHT, value("input", "0", **FP32)),
    ),
    (
        "an inf gradient far from the limit",
        backward.gradient_limit,
        evidence(bad("grad_input", "0", 2.0, num_posinf=1, **BACKWARD), SMALL),
    ),
    ("it was made here", backward.gradient_from_outside, evidence(bad("grad_input", "0", **BACKWARD))),
    (
        "a finite learning rate",
        steps.bad_learning_rate,
        evidence(bad("parameter", "weight", **STEP), batches=(facts(learning_rate=0.1),)),
    ),
    (
        "the rate of another batch",
        steps.bad_learning_rate,
        evidence(bad("parameter", "weight", **STEP), batches=(facts(3, learning_rate=float("nan")),)),
    ),
    (
        "a forward output has no step",
        steps.bad_learning_rate,
        evidence(bad(), batches=(facts(learning_rate=float("nan")),)),
    ),
    (
        "one of many parameters",
        steps.step_too_large,
        evidence(bad("parameter", "weight", **STEP), step=Step(9, 1, 9, 0)),
    ),
    (
        "the gradients were bad",
        steps.step_too_large,
        evidence(bad("parameter", "weight", **STEP), step=Step(9, 9, 9, 9)),
    ),
    (
        "a second moment without zeros",
        steps.vanishing_adam_eps,
        evidence(bad("parameter", "weight", **STEP), value("optimizer_state", "weight.exp_avg_sq", 1.0)),
    ),
    (
        "float32 keeps an eps of 1e-8",
        steps.vanishing_adam_eps,
        evidence(bad("parameter", "weight", **STEP, **FP32)),
    ),
    (
        "as many weights as gradients",
        steps.clipped_by_bad_norm,
        evidence(bad("gradient", "weight", **BACKWARD), step=Step(9, 1, 9, 1)),
    ),
    (
        "a finite gradient norm",
        steps.clipped_by_bad_norm,
        evidence(bad("parameter", "weight", **STEP), batches=(facts(grad_norm=3.0),)),
    ),
    ("finite gradients", steps.bad_gradient_used, evidence(bad("parameter", "weight", **STEP), step=Step(9, 1, 9, 0))),
    (
        "a scaler that found its scale",
        steps.scaler_gives_up,
        evidence(
            bad("gradient", "weight", **BACKWARD),
            batches=tuple(facts(i, skipped=i < 4, loss_scale=1024.0) for i in range(5)),
        ),
    ),
    ("an input between modules", steps.bad_data, evidence(bad("input", "0"), source=Source.BETWEEN)),
    (
        "batches ran before it",
        steps.never_initialised,
        evidence(bad("parameter", "bg", None, num_nan=64, batch=3), source=Source.WEIGHT),
    ),
    ("the step did it", steps.broken_checkpoint, evidence(bad("parameter", "weight", **STEP))),
    ("before the first batch", steps.broken_before, evidence(bad("parameter", "weight"), source=Source.WEIGHT)),
    ("a parameter is no buffer", steps.bad_buffer, evidence(bad("parameter", "weight"), source=Source.WEIGHT)),
]


@pytest.mark.parametrize(
    ("pattern", "given", "confidence"), [case[1:] for case in FITS], ids=[f"{c[1].__name__}: {c[0]}" for c in FITS]
)
def test_reads(pattern: Pattern, given: Evidence, confidence: Confidence) -> None:
    reading = pattern(given)
    assert reading is not None
    assert reading.confidence is confidence


@pytest.mark.parametrize(
    ("pattern", "given"), [case[1:] for case in DOES_NOT_FIT], ids=[f"{c[1].__name__}: {c[0]}" for c in DOES_NOT_FIT]
)
def test_does_not_read(pattern: Pattern, given: Evidence) -> None:
    assert pattern(given) is None


def test_every_pattern_has_cases_for_and_against() -> None:
    named = {
        *forward.FORWARD_PATTERNS,
        *backward.BACKWARD_PATTERNS,
        *backward.OUTSIDE_PATTERNS,
        *steps.STEP_PATTERNS,
    }
    assert named == {case[1] for case in FITS} == {case[1] for case in DOES_NOT_FIT}


def test_every_reading_fits_on_its_lines() -> None:
    for _, pattern, given, _ in FITS:
        reading = pattern(given)
        assert reading is not None
        assert len(f"{reading.confidence.value}: {reading.cause}.") <= 138
        assert len(f"Try: {reading.advice}.") <= 138


def test_scaler_reading_says_how_many_steps_and_which_scale() -> None:
    skipping = tuple(facts(i, skipped=True, loss_scale=2.0 ** (4 - i)) for i in range(5))
    reading = steps.scaler_gives_up(evidence(bad("gradient", "weight", **BACKWARD), batches=skipping))
    assert reading is not None
    assert "skipped 5 steps in a row, scale down to 1" in reading.cause


def test_the_code_around_is_read_when_the_value_was_made_between_modules() -> None:
    around = value("input", "weight", abs_min=0.0, module="", module_class="Net")
    made = evidence(bad("input", "bias", **ATTENTION), source=Source.BETWEEN, forward=(around,), around=around)
    assert [reading.pattern for reading in readings(made)] == ["division by zero"]


def test_what_came_in_from_elsewhere_is_not_blamed_on_the_module() -> None:
    given = evidence(bad(module_class="LayerNorm"), bad("input", "0", abs_min=0.0), source=Source.EARLIER)
    assert readings(given) == ()


def test_the_surest_reading_comes_first() -> None:
    found = readings(evidence(bad(module_class="LayerNorm"), WITH_ZERO))
    assert [reading.pattern for reading in found] == ["vanishing eps", "division by zero"]


def test_a_last_resort_is_read_only_where_nothing_else_fits() -> None:
    assert [reading.pattern for reading in readings(evidence(bad(), SMALL))] == ["own code"]
    assert [reading.pattern for reading in readings(evidence(bad("grad_input", "0", **BACKWARD), WEIGHT))] == [
        "backward code"
    ]
    assert [reading.pattern for reading in readings(evidence(bad("parameter", "weight", **STEP, **FP32)))] == [
        "step code"
    ]


def test_beside_a_sure_reading_no_mere_possibility_is_told() -> None:
    sure, possible = (
        Reading("a", Confidence.VERY_LIKELY, "cause", "advice"),
        Reading("b", Confidence.POSSIBLE, "cause", "advice"),
    )
    assert plausible((sure, possible)) == (sure,)


def test_where_nothing_is_sure_every_reading_is_told() -> None:
    likely, possible = (
        Reading("a", Confidence.LIKELY, "cause", "advice"),
        Reading("b", Confidence.POSSIBLE, "cause", "advice"),
    )
    assert plausible((likely, possible)) == (likely, possible)
