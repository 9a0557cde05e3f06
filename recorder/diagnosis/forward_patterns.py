"""What makes a forward output go bad although what went in was finite."""

from __future__ import annotations

import math

from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.facts import (
    float_inputs,
    growth,
    has_zero,
    is_attention,
    is_class,
    is_narrow,
    is_norm,
    is_recurrent,
    largest_input,
    loses_small_eps,
    matrices,
    of_role,
    product_reach,
    truth_inputs,
    whole_inputs,
)
from recorder.diagnosis.reading import Confidence, Reading
from recorder.diagnosis.words import module_name, number

NEAR = 1 / 16
"""Finite values within four binades of the limit say that the others went over it."""


def dtype_limit(evidence: Evidence) -> Reading | None:
    """inf beside finite values near the limit, or inputs and weights whose product can pass it."""
    first, limit = evidence.first, evidence.limit
    if not first.num_inf or limit is None or _is_log_of_zero(evidence):
        return None
    seen = max([first.abs_max or 0.0, *(size for _, size in evidence.history)])
    near = seen >= limit.max * NEAR or product_reach(evidence) > limit.max
    if not near and not (is_narrow(limit) and largest_input(evidence) >= limit.max / 256):
        return None
    how = Confidence.VERY_LIKELY if near and is_narrow(limit) else Confidence.LIKELY
    cause = f"the values outgrew {first.dtype}, whose limit is {number(limit.max)}"
    if is_narrow(limit):
        advice = "run this module in bfloat16 or float32, or scale down what feeds it; clamping only hides it"
    else:
        advice = "find what multiplies it: a missing normalisation, a learning rate that is too high, no clipping"
    return Reading("dtype limit", how, cause, advice)


def reduction_overflow(evidence: Evidence) -> Reading | None:
    """Small inputs, many of them, into few outputs: the sum passed the limit before the division."""
    first, limit, peak = evidence.first, evidence.limit, largest_input(evidence)
    if not first.num_inf or limit is None or not is_narrow(limit) or matrices(evidence):
        return None
    terms = max((v.numel or 0 for v in float_inputs(evidence)), default=0) // max(first.numel or 1, 1)
    if terms < 8 or not 0 < peak <= limit.max * NEAR or max(peak, peak**2) * terms < limit.max:
        return None
    how = Confidence.VERY_LIKELY if peak * terms >= limit.max else Confidence.LIKELY
    cause = f"a sum over some {terms:,} values of at most {number(peak)} passed {number(limit.max)} before its division"
    return Reading("reduction overflow", how, cause, "take the mean or sum in float32, or divide before adding up")


def intermediate_overflow(evidence: Evidence) -> Reading | None:
    """NaN without a zero in sight, from inputs whose squares do not fit."""
    first, limit, peak = evidence.first, evidence.limit, largest_input(evidence)
    if not first.num_nan or limit is None or peak <= 0 or peak**2 < limit.max:
        return None
    how = Confidence.LIKELY if is_narrow(limit) else Confidence.POSSIBLE
    cause = f"a product inside passed {first.dtype}'s limit (inputs up to {number(peak)}), and inf - inf is NaN"
    wider = "compute this module in float32, or scale its inputs first"
    advice = wider if is_narrow(limit) else "find why its inputs are that large"
    return Reading("intermediate overflow", how, cause, advice)


def vanishing_eps(evidence: Evidence) -> Reading | None:
    """A norm in a dtype in which its eps is zero, fed with zeros."""
    first, limit = evidence.first, evidence.limit
    if not first.num_nan or limit is None or not (is_norm(evidence.maker) and loses_small_eps(limit)):
        return None
    smallest = min((v.abs_min for v in float_inputs(evidence) if v.abs_min is not None), default=1.0)
    if smallest**2 >= limit.smallest_subnormal:
        return None
    how = Confidence.VERY_LIKELY if smallest == 0 else Confidence.LIKELY
    cause = f"an eps below {number(limit.smallest_subnormal)} is 0 in {first.dtype}: a row without variance gives 0/0"
    return Reading("vanishing eps", how, cause, "use an eps of 1e-5 or more, or run the norm in float32")


def fully_masked_row(evidence: Evidence) -> Reading | None:
    """Softmax over nothing but -inf."""
    first = evidence.first
    if not first.num_nan or not is_attention(evidence.maker):
        return None
    inputs = of_role(evidence.forward, "input", "buffer")
    infinite = any(v.expected and v.num_neginf for v in inputs)
    all_alike = any(v.abs_min is not None and v.abs_min == v.abs_max for v in truth_inputs(evidence))
    if infinite or all_alike:
        how = Confidence.VERY_LIKELY
    else:
        how = Confidence.LIKELY if truth_inputs(evidence) or evidence.masks_nearby else Confidence.POSSIBLE
    cause = "a row of the attention mask hides every key, and softmax over nothing but -inf is NaN"
    advice = "leave each row one visible key, drop samples that are all padding, or mask with a large finite number"
    return Reading("fully masked row", how, cause, advice)


def log_of_zero(evidence: Evidence) -> Reading | None:
    """-inf, and no +inf."""
    if not _is_log_of_zero(evidence):
        return None
    zero = has_zero(float_inputs(evidence))
    how = Confidence.VERY_LIKELY if zero or is_class(evidence.maker, r"log(?!it)") else Confidence.LIKELY
    cause = "the logarithm of an exact 0" + (", which its input holds" if zero else ": a probability that underflowed")
    return Reading("log of zero", how, cause, "use log_softmax or logsigmoid, or clamp the argument above 0 first")


def exp_overflow(evidence: Evidence) -> Reading | None:
    """An exponent beyond the logarithm of the limit."""
    first, limit, peak = evidence.first, evidence.limit, largest_input(evidence)
    if not first.num_posinf or limit is None or peak < math.log(limit.max) or matrices(evidence):
        return None
    named = is_class(evidence.maker, "exp|gauss|reparam|sampl|softplus")
    if not named and peak**2 > limit.max:
        return None
    unsure = Confidence.POSSIBLE if is_narrow(limit) else Confidence.LIKELY
    how = Confidence.VERY_LIKELY if named else unsure
    cause = f"exp of an unbounded value: inputs reach {number(peak)}, exp fits up to {number(math.log(limit.max))}"
    return Reading("exp overflow", how, cause, "clamp the exponent (log variances to -30..20), or subtract the maximum")


def division_by_zero(evidence: Evidence) -> Reading | None:
    """A zero in what a module without weights of its own received."""
    first = evidence.first
    weighs = matrices(evidence) or is_attention(evidence.maker) or is_recurrent(evidence.maker)
    if weighs or _is_log_of_zero(evidence) or not has_zero(float_inputs(evidence)):
        return None
    both = bool(first.num_nan and first.num_inf)
    how = Confidence.LIKELY if both or is_class(evidence.maker, "quant|scale|div|normal|ratio") else Confidence.POSSIBLE
    cause = "a division by 0, such as a scale taken from a row of zeros (its input holds exact zeros)"
    return Reading("division by zero", how, cause, "clamp the divisor: scale.clamp_min(eps)")


def empty_selection(evidence: Evidence) -> Reading | None:
    """The mean of nothing."""
    first = evidence.first
    if not first.num_nan or is_attention(evidence.maker):
        return None
    empty = any(v.numel == 0 for v in of_role(evidence.forward, "input"))
    nothing_true = any(v.abs_max == 0 for v in truth_inputs(evidence))
    if not empty and not nothing_true:
        return None
    what = "a tensor without elements" if empty else "a mask that is False everywhere"
    cause = f"a mean over an empty selection ({what} came in), which is 0/0"
    return Reading("empty selection", Confidence.VERY_LIKELY, cause, "use sum() / count.clamp_min(1), or skip the term")


def labels_ignored(evidence: Evidence) -> Reading | None:
    """A scalar NaN where all labels are the ignore index."""
    first = evidence.first
    if not first.num_nan or (first.numel or 0) > 1:
        return None
    if not any(v.abs_min == 100 and v.abs_max == 100 for v in whole_inputs(evidence)):
        return None
    cause = "all labels of the batch are -100, so the loss is a mean over nothing"
    advice = "skip such batches, or check truncation and the masking of prompts: no label was left"
    return Reading("all labels ignored", Confidence.VERY_LIKELY, cause, advice)


def single_sample_norm(evidence: Evidence) -> Reading | None:
    """Statistics over one sample."""
    first = evidence.first
    if not is_class(evidence.maker, r"batch_?norm|^bn|\bbn"):
        return None
    single = any(_samples_per_channel(v.sizes) == 1 for v in float_inputs(evidence))
    running = first.role == "buffer" and first.key.startswith("running_")
    if not single and not running:
        return None
    cause = "batch statistics of a single sample: its variance over n - 1 is 0/0"
    advice = "drop_last=True in the loader, a larger batch, or eval() for this norm; then reset its running statistics"
    return Reading("single-sample norm", Confidence.VERY_LIKELY if single else Confidence.LIKELY, cause, advice)


def integer_beyond_dtype(evidence: Evidence) -> Reading | None:
    """Positions that the module's own dtype can't hold."""
    limit = evidence.limit
    peak = max((v.abs_max or 0.0 for v in whole_inputs(evidence)), default=0.0)
    if limit is None or peak < limit.max * (1 - limit.eps):
        return None
    cause = f"whole numbers up to {peak:,.0f} were cast to {evidence.first.dtype}, whose limit is {number(limit.max)}"
    advice = "compute positions and their angles in float32, and cast the result"
    return Reading("integer beyond dtype", Confidence.VERY_LIKELY, cause, advice)


def target_does_not_fit(evidence: Evidence) -> Reading | None:
    """CTC without a possible alignment."""
    if not evidence.first.num_posinf or not is_class(evidence.maker, "ctc"):
        return None
    cause = "a target that is longer than its input allows: CTC finds no alignment and returns inf"
    advice = "drop samples whose input is too short for their target (repeats need a blank), or set zero_infinity=True"
    return Reading("target does not fit", Confidence.VERY_LIKELY, cause, advice)


def recurrent_growth(evidence: Evidence) -> Reading | None:
    """A state that grows with every time step."""
    if not is_recurrent(evidence.maker):
        return None
    how = Confidence.VERY_LIKELY if growth(evidence.history) > 10 else Confidence.LIKELY
    cause = "the recurrent state grows with each time step, and longer sequences pass the limit"
    advice = "shorten sequences, use gates or a saturating activation, keep the recurrent matrix's norm below 1"
    return Reading("recurrent growth", how, cause, advice)


def own_code(evidence: Evidence) -> Reading:
    """What is left when nothing else fits."""
    nan = "0/0, inf - inf, or a root or logarithm of a negative number"
    what = nan if evidence.first.num_nan else "a division by something tiny, an exp, or a large product"
    whose = f"the own forward of {module_name(evidence.maker.module, 40)}"
    cause = f"an operation inside {whose}: {what}"
    return Reading("own code", Confidence.POSSIBLE, cause, "print the steps inside that forward on this batch")


def _is_log_of_zero(evidence: Evidence) -> bool:
    first = evidence.first
    near = evidence.limit is not None and (first.abs_max or 0.0) >= evidence.limit.max * NEAR
    if not first.num_neginf or first.num_posinf or matrices(evidence) or near:
        return False
    return has_zero(float_inputs(evidence)) or is_class(evidence.maker, "log|loss|entropy|softmax")


def _samples_per_channel(sizes: tuple[int, ...] | None) -> int:
    """(batch, channels, ...) holds this many numbers of each channel; 0 where that is not known."""
    return math.prod(sizes[:1] + sizes[2:]) if sizes and len(sizes) >= 2 else 0


FORWARD_PATTERNS = (
    integer_beyond_dtype,
    target_does_not_fit,
    labels_ignored,
    empty_selection,
    single_sample_norm,
    vanishing_eps,
    fully_masked_row,
    log_of_zero,
    reduction_overflow,
    recurrent_growth,
    dtype_limit,
    exp_overflow,
    division_by_zero,
    intermediate_overflow,
)
