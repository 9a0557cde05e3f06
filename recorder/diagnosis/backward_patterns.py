"""What makes a gradient go bad although the forward pass was finite."""

from __future__ import annotations

from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.facts import float_inputs, is_class, is_narrow, matrices, of_role
from recorder.diagnosis.reading import Confidence, Reading
from recorder.diagnosis.rows import Value
from recorder.diagnosis.words import number
from recorder.schema import DtypeLimits

NEAR = 1 / 16


def slope_at_zero(evidence: Evidence) -> Reading | None:
    """The argument was 0, or so small that 1/x does not fit."""
    if matrices(evidence):
        return None
    tiny = [v for v in _arguments(evidence) if _has_endless_slope(v, evidence.limits.get(v.dtype))]
    if not tiny:
        return None
    smallest = min(tiny, key=lambda v: v.abs_min or 0.0)
    likely = Confidence.POSSIBLE if _forward_holds_nan(evidence) else Confidence.LIKELY
    how = Confidence.VERY_LIKELY if evidence.first.num_inf else likely
    what = "an exact 0" if smallest.abs_min == 0 else f"a value of {number(smallest.abs_min)}"
    cause = f"the slope of a square root, logarithm, norm or quotient at {what} ({smallest.role} of its forward)"
    return Reading("slope at zero", how, cause, "add an eps inside: sqrt(x + eps), log(x.clamp_min(eps)), log_softmax")


def dead_branch(evidence: Evidence) -> Reading | None:
    """NaN from a branch that `where` did not take."""
    if not evidence.first.num_nan or matrices(evidence) or _forward_holds_nan(evidence):
        return None
    zero = any(v.abs_min == 0 for v in float_inputs(evidence))
    how = Confidence.POSSIBLE if zero or not evidence.forward or _is_spectral(evidence) else Confidence.LIKELY
    cause = "torch.where sends a gradient into the branch it did not take, and 0 * NaN or 0 * inf is NaN"
    return Reading("dead branch", how, cause, "make the argument safe before the branch: sqrt(where(x > 0, x, 1.0))")


def masked_too_late(evidence: Evidence) -> Reading | None:
    """Forward inputs held NaN that the forward masked out again."""
    outputs = of_role(evidence.forward, "output")
    if not _forward_holds_nan(evidence) or any(v.flagged for v in outputs):
        return None
    cause = "NaN inputs were masked after the computation: the forward hides them, the gradient is 0 * NaN"
    advice = "replace the missing values before computing with them (torch.where on the inputs), not after"
    return Reading("masked too late", Confidence.VERY_LIKELY, cause, advice)


def equal_eigenvalues(evidence: Evidence) -> Reading | None:
    """The gradient of a decomposition divides by the gaps between eigenvalues."""
    if matrices(evidence) or _forward_holds_nan(evidence) or not evidence.forward:
        return None
    plain = not evidence.first.num_nan or any(v.abs_min == 0 for v in float_inputs(evidence))
    if plain and not _is_spectral(evidence):
        return None
    how = Confidence.LIKELY if _is_spectral(evidence) else Confidence.POSSIBLE
    cause = "an eigen or singular value decomposition of a degenerate input: equal values, 1/(a - a) in its gradient"
    advice = (
        "look for identical samples in the batch, use cholesky or float64, or keep eigenvectors out of the gradient"
    )
    return Reading("equal eigenvalues", how, cause, advice)


def gradient_limit(evidence: Evidence) -> Reading | None:
    """The gradient itself ran out of range, with the loss scale on top."""
    first, limit = evidence.first, evidence.limit
    if not first.num_inf or limit is None:
        return None
    facts = evidence.facts_of(first.batch)
    scale = facts.loss_scale if facts is not None else None
    near = (first.abs_max or 0.0) >= limit.max * NEAR
    if not near and not (is_narrow(limit) and matrices(evidence)):
        return None
    scaled = f", with a loss scale of {number(scale)}" if scale is not None else ""
    how = Confidence.VERY_LIKELY if near and is_narrow(limit) else Confidence.LIKELY
    cause = f"the gradient outgrew {first.dtype}, whose limit is {number(limit.max)}{scaled}"
    return Reading("gradient limit", how, cause, "lower the loss scale, run this module in bfloat16 or float32")


def gradient_from_outside(evidence: Evidence) -> Reading | None:
    """It was bad when it entered."""
    if evidence.first.role != "grad_output":
        return None
    if evidence.first.module == "":
        cause = "the loss is computed outside the model, and its own gradient is bad already"
        return Reading(
            "gradient from outside", Confidence.VERY_LIKELY, cause, "look at the loss function on this batch"
        )
    cause = "the code between this module and the next ones (a loss, a division, a mask) made the gradient bad"
    return Reading("gradient from outside", Confidence.LIKELY, cause, "look at what uses this module's output")


def backward_code(evidence: Evidence) -> Reading:
    """What is left when nothing else fits."""
    cause = "an operation inside this module whose gradient is undefined or too large at these values"
    return Reading("backward code", Confidence.POSSIBLE, cause, "torch.autograd.detect_anomaly() names the operation")


def _arguments(evidence: Evidence) -> list[Value]:
    """What the gradient was taken for: the parameter itself, else the forward's inputs and small parameters."""
    if evidence.first.role == "gradient":
        return [v for v in of_role(evidence.forward, "parameter") if v.key == evidence.first.key]
    return float_inputs(evidence)


def _has_endless_slope(value: Value, limit: DtypeLimits | None) -> bool:
    """Whether 1/x does not fit the dtype."""
    return value.abs_min is not None and limit is not None and value.abs_min * limit.max < 1


def _forward_holds_nan(evidence: Evidence) -> bool:
    return any(v.num_nan for v in of_role(evidence.forward, "input"))


def _is_spectral(evidence: Evidence) -> bool:
    return is_class(evidence.first, "eig|svd|whiten|pca|decorr|spectr|procrustes|cholesky")


BACKWARD_PATTERNS = (masked_too_late, slope_at_zero, gradient_limit, equal_eigenvalues, dead_branch)
OUTSIDE_PATTERNS = (gradient_limit, gradient_from_outside)
