"""What makes weights go bad: steps, scalers, and weights or data that were bad before anything ran."""

from __future__ import annotations

import math

from recorder.diagnosis.birth import Source
from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.facts import growth, has_zero, is_recurrent, loses_small_eps, of_role
from recorder.diagnosis.reading import Confidence, Reading
from recorder.diagnosis.words import count, number
from recorder.schema import BatchInfo

MANY_SKIPS = 2
HIGH_RATE = 1.0
_LAST_OF_A_STEP = ("parameter", "optimizer_state")


def bad_learning_rate(evidence: Evidence) -> Reading | None:
    """nan or inf times anything."""
    facts = _facts_of_the_step(evidence)
    if facts is None or facts.learning_rate is None or math.isfinite(facts.learning_rate):
        return None
    cause = f"the learning rate of the step was {number(facts.learning_rate)}: every weight it touched is lost"
    return Reading("bad learning rate", Confidence.CERTAIN, cause, "look at the scheduler: a warm-up of 0 steps is 0/0")


def step_too_large(evidence: Evidence) -> Reading | None:
    """Most parameters died in one step while gradients were finite."""
    step, facts = evidence.step, _facts_of_the_step(evidence)
    rate = facts.learning_rate if facts is not None else None
    if evidence.first.phase != "optimizer" or step.bad_gradients or (rate is not None and not math.isfinite(rate)):
        return None
    if step.parameters < 2 or step.bad_parameters < 0.8 * step.parameters:
        return None
    high = rate is None or rate >= HIGH_RATE
    seen = f" (it was {number(rate)})" if rate is not None else ""
    cause = f"{step.bad_parameters} of {step.parameters} parameters died in one step: a learning rate too high{seen}"
    advice = "check the learning rate, weight decay and momentum of that step; warm up; clip gradients"
    return Reading("step too large", Confidence.LIKELY if high else Confidence.POSSIBLE, cause, advice)


def training_diverges(evidence: Evidence) -> Reading | None:
    """The same value grew batch after batch."""
    factor, batches = growth(evidence.history), len(evidence.history)
    if batches < 3 or factor < 4 or evidence.source is Source.DATA or is_recurrent(evidence.maker):
        return None
    facts = evidence.facts_of(evidence.first.batch)
    rate = f" (learning rate {number(facts.learning_rate)})" if facts and facts.learning_rate is not None else ""
    cause = f"training diverges{rate}: this value grew {number(factor)}-fold over {batches} batches"
    advice = "lower the learning rate, warm up, clip gradients; compare with a run in float32"
    return Reading("training diverges", Confidence.LIKELY, cause, advice)


def vanishing_adam_eps(evidence: Evidence) -> Reading | None:
    """Adam's eps is 0 in half precision, and so is the second moment of a weight without gradient."""
    first = evidence.first
    if first.phase != "optimizer" or not loses_small_eps(evidence.limit) or not (first.num_nan or first.num_inf):
        return None
    moments = [v for v in of_role(evidence.frame, "optimizer_state") if v.key == f"{_parameter(first.key)}.exp_avg_sq"]
    if evidence.step.bad_gradients or (moments and not has_zero(moments)):
        return None
    how = Confidence.VERY_LIKELY if moments else Confidence.LIKELY
    cause = f"Adam's eps of 1e-8 is 0 in {first.dtype}: updates with a second moment of 0 were divided by 0"
    return Reading("vanishing Adam eps", how, cause, "keep weights in float32 (autocast and GradScaler), or eps=1e-4")


def clipped_by_bad_norm(evidence: Evidence) -> Reading | None:
    """One bad gradient, and more weights lost than that: the norm that all were divided by was bad."""
    step, facts = evidence.step, evidence.facts_of(evidence.first.batch)
    if evidence.first.phase == "forward":
        return None
    lost = f"{count(step.bad_gradients, 'bad gradient')}, {count(step.bad_parameters, 'bad weight')}"
    advice = "clip_grad_norm_(..., error_if_nonfinite=True), and mend the first bad gradient"
    if 0 < step.bad_gradients < step.bad_parameters:
        cause = f"clipping divided all gradients by a bad norm: {lost}"
        return Reading("clipped by a bad norm", Confidence.VERY_LIKELY, cause, advice)
    norm = facts.grad_norm if facts is not None else None
    if evidence.first.phase != "optimizer" or norm is None or math.isfinite(norm):
        return None
    cause = f"clipping by a gradient norm of {number(norm)}"
    return Reading("clipped by a bad norm", Confidence.LIKELY, cause, advice)


def bad_gradient_used(evidence: Evidence) -> Reading | None:
    """The step was taken with gradients that were bad."""
    if evidence.source is not Source.GRADIENT:
        return None
    cause = (
        f"the step used gradients that were bad already ({evidence.step.bad_gradients} of {evidence.step.gradients})"
    )
    return Reading("bad gradient used", Confidence.VERY_LIKELY, cause, "skip the step when a gradient is not finite")


def scaler_gives_up(evidence: Evidence) -> Reading | None:
    """Skips that do not end."""
    skips = trailing_skips(evidence.batches)
    if skips < MANY_SKIPS or evidence.first.phase == "forward":
        return None
    scale = next((one.loss_scale for one in reversed(evidence.batches) if one.loss_scale is not None), None)
    down = f", scale down to {number(scale)}" if scale is not None else ""
    cause = f"the scaler skipped {skips} steps in a row{down}: the gradients are bad at any scale"
    return Reading(
        "scaler gives up", Confidence.VERY_LIKELY, cause, "find the first bad gradient; the scale is not to blame"
    )


def bad_data(evidence: Evidence) -> Reading | None:
    """The batch itself."""
    if evidence.source is not Source.DATA:
        return None
    cause = "the batch holds it: a sample scaled by a range of 0, a missing value, a broken file"
    advice = f"check the loader at batch {evidence.first.batch} before touching the model or the learning rate"
    return Reading("bad data", Confidence.CERTAIN, cause, advice)


def never_initialised(evidence: Evidence) -> Reading | None:
    """Bad before the first batch, and whole: memory that nobody filled."""
    if not _bad_from_the_start(evidence):
        return None
    whole = _share(evidence) >= 0.5
    cause = "the parameter was never initialised (torch.empty, or a module added without reset_parameters)"
    how = Confidence.LIKELY if whole else Confidence.POSSIBLE
    return Reading("never initialised", how, cause, "fill it with torch.nn.init where it is made")


def broken_checkpoint(evidence: Evidence) -> Reading | None:
    """Bad before the first batch, but only here and there."""
    if not _bad_from_the_start(evidence):
        return None
    cause = "the checkpoint it was loaded from holds it, or a cast to a narrower dtype made it"
    how = Confidence.POSSIBLE if _share(evidence) >= 0.5 else Confidence.LIKELY
    return Reading("broken checkpoint", how, cause, "check the checkpoint's tensors with torch.isfinite before loading")


def broken_before(evidence: Evidence) -> Reading | None:
    """Weights that were bad when a later batch began."""
    first = evidence.first
    if evidence.source is not Source.WEIGHT or first.batch <= 0:
        return None
    cause = (
        f"it went bad between batch {first.batch - 1} and {first.batch}: the step there, or code that writes weights"
    )
    advice = "record phase optimizer too; look at the gradients and the learning rate of that step"
    return Reading("broken before", Confidence.LIKELY, cause, advice)


def bad_buffer(evidence: Evidence) -> Reading | None:
    """State that is not trained."""
    if evidence.source is not Source.BUFFER:
        return None
    cause = "a buffer holds it: running statistics, a cached mask, or a table computed in a narrow dtype"
    return Reading("bad buffer", Confidence.LIKELY, cause, "see where the module fills that buffer, and in which dtype")


def step_code(evidence: Evidence) -> Reading:
    """What is left when nothing else fits."""
    cause = "the optimizer's own arithmetic, or code that changed gradients after the backward pass (clipping, say)"
    return Reading("step code", Confidence.POSSIBLE, cause, "check gradients and their norm right before the step")


def trailing_skips(batches: tuple[BatchInfo, ...]) -> int:
    """How many steps in a row were skipped, counted back from the last batch with a step."""
    known = [one.skipped for one in batches if one.skipped is not None]
    return next((i for i, skipped in enumerate(reversed(known)) if not skipped), len(known))


def _facts_of_the_step(evidence: Evidence) -> BatchInfo | None:
    """Facts of the batch whose step wrote the bad weight; None when no step did."""
    first = evidence.first
    if first.phase == "optimizer":
        return evidence.facts_of(first.batch)
    return evidence.facts_of(first.batch - 1) if evidence.source is Source.WEIGHT else None


def _bad_from_the_start(evidence: Evidence) -> bool:
    return evidence.source is Source.WEIGHT and evidence.first.batch <= 0


def _share(evidence: Evidence) -> float:
    first = evidence.first
    return (first.num_nan + first.num_inf) / max(first.numel or 1, 1)


def _parameter(key: str) -> str:
    """The parameter that a key of phase optimizer belongs to: "weight.exp_avg" is of "weight"."""
    parameter, dot, state = key.rpartition(".")
    return parameter if dot and state.startswith(("exp_avg", "max_exp", "step", "momentum")) else key


STEP_PATTERNS = (
    bad_learning_rate,
    clipped_by_bad_norm,
    bad_gradient_used,
    vanishing_adam_eps,
    scaler_gives_up,
    step_too_large,
    training_diverges,
    bad_data,
    never_initialised,
    broken_checkpoint,
    broken_before,
    bad_buffer,
)
