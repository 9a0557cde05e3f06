"""The lines of a verdict between its place and its readings: numbers, source, growth and spread."""

from __future__ import annotations

from recorder.diagnosis.birth import Source
from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.facts import float_inputs, is_narrow, of_role, whole_inputs
from recorder.diagnosis.rows import Value
from recorder.diagnosis.words import (
    LINE,
    NAME,
    count,
    kind_of,
    listed,
    module_name,
    number,
    relative,
    shortened,
    tensor_name,
    with_class,
)

_GROWN = (Source.BORN, Source.BETWEEN, Source.EARLIER)


def story(evidence: Evidence) -> list[str]:
    """Those of the lines that this evidence has something to say for; at most six."""
    said = numbers(evidence)
    parts = [
        f"{said[0].upper()}{said[1:]}." if said else None,
        source(evidence),
        frames(evidence),
        batches(evidence),
        spread(evidence),
        eviction(evidence),
    ]
    return [part for part in parts if part]


def numbers(evidence: Evidence) -> str:
    """How many elements, and how near the finite ones are to the dtype's limit."""
    first, limit = evidence.first, evidence.limit
    parts = [_share(first)]
    if first.role not in ("parameter", "buffer", "input"):
        before, peak = _largest_before(evidence)
        near = limit is not None and (first.num_inf or is_narrow(limit) or (peak or 0) > limit.max / 1024)
        where = f" in {first.dtype}" + (f", limit {number(limit.max)}" if limit is not None and near else "")
        parts.append(f"{before} {number(peak)}{where}" if peak is not None else "")
    return ", ".join(part for part in parts if part)


def source(evidence: Evidence) -> str | None:
    """Born here, or where it came in from."""
    first = evidence.first
    said = {
        Source.BORN: _born(evidence),
        Source.BETWEEN: f"Made between modules, by the own code of {_maker(evidence)}: no module put it out.",
        Source.DATA: "Inherited from the data: it came into the model with the batch, before any module ran.",
        Source.WEIGHT: _weight(evidence),
        Source.BUFFER: _weight(evidence),
        Source.GRADIENT: "Inherited from the gradients: some of this batch's were bad before the step was taken.",
        Source.AFTER: "Inherited: the gradient was bad when it came to this module, so something after it made it.",
        Source.EARLIER: f"Inherited: something that went into {module_name(first.module, 50)} was bad already.",
    }
    return said.get(evidence.source)


def frames(evidence: Evidence) -> str | None:
    """The chain of abs max through the frames before."""
    first, chain = evidence.first, evidence.chain
    if not chain or evidence.source not in _GROWN or first.phase == "optimizer":
        return None
    steps = [f"{number(value.abs_max)} ({relative(value.module, first.module)})" for value in chain]
    said = _chain_line(steps, first)
    largest = evidence.largest
    if largest is None or (largest.abs_max or 0) < 2 * max(value.abs_max or 0 for value in chain):
        return said
    where = f"{tensor_name(largest.role, largest.key)} of {relative(largest.module, first.module)}"
    return f"{said} Largest: {number(largest.abs_max)}, {where}."


def _chain_line(steps: list[str], first: Value) -> str:
    """As many of the last steps as fit on a line."""
    said = f"Over frames, abs max: {' -> '.join(steps)} -> {kind_of(first)}."
    return said if len(said) <= LINE or len(steps) == 1 else _chain_line(steps[1:], first)


def batches(evidence: Evidence) -> str | None:
    """The same value in earlier batches."""
    sizes = [number(size) for _, size in evidence.history]
    if not sizes or evidence.source not in _GROWN:
        return None
    when = "in the batch before" if len(sizes) == 1 else f"in the last {len(sizes)} batches"
    return f"Over batches, abs max of the same value: {', '.join(sizes)} {when}, now {kind_of(evidence.first)}."


def spread(evidence: Evidence) -> str | None:
    """What became of it."""
    later = evidence.spread
    if later.frames == 0:
        return "The dump ends with it: how it would have spread is not recorded."
    if later.bad_frames == 0:
        so_far = (
            "It went no further"
            if later.batches > 0 or evidence.first.phase == "forward"
            else "So far it did not spread"
        )
        return f"{so_far}: {count(later.frames, 'later frame')} in the dump came out finite."
    far = ", as far as the model's output" if later.reached_output else ""
    reach = f"{later.bad_frames:,} of {count(later.frames, 'later frame')}{far}"
    return _listing(f"It spread to {reach}: ", later.modules, later.module_count)


def _listing(said: str, modules: tuple[str, ...], total: int) -> str:
    """The first modules by name, whole where the line has room: two whole names say more than three cut ones."""
    for width, limit in ((NAME, 3), (NAME, 2), (40, 2), (28, 3)):
        whole = f"{said}{listed((shortened(name, width) or 'the model' for name in modules), limit, total)}."
        if len(whole) <= LINE:
            break
    return whole


def eviction(evidence: Evidence) -> str | None:
    """Where the birth may lie before what was kept."""
    from_before = evidence.source is Source.EARLIER or (
        evidence.source in (Source.WEIGHT, Source.BUFFER) and evidence.was_finite is None and evidence.first.batch > 0
    )
    if not from_before or not evidence.evicted:
        return None
    lost = count(evidence.evicted, "record")
    return f"It may have been born earlier: {lost} from before batch {evidence.first_batch} evicted."


def _share(first: Value) -> str:
    bad = first.num_nan + first.num_inf
    if not bad or not first.numel:
        return ""
    return "its only element" if first.numel == 1 else f"{bad:,} of {count(first.numel, 'element')}"


def _largest_before(evidence: Evidence) -> tuple[str, float | None]:
    """The largest finite value: of itself, else of what went in, else of the batch before."""
    first = evidence.first
    if first.abs_max is not None:
        return "its finite values reach", first.abs_max
    into = of_role(evidence.frame, "grad_output" if first.phase == "backward" else "input")
    peaks = [value.abs_max for value in into if value.abs_max is not None and value.dtype in evidence.limits]
    if peaks:
        return "abs max before", max(peaks)
    if evidence.history:
        return "abs max in the batch before", evidence.history[-1][1]
    return "", None


def _born(evidence: Evidence) -> str:
    first, step = evidence.first, evidence.step
    if first.phase == "backward":
        return "Born here: the gradient that came into this module was finite, the one that left it was not."
    if first.phase != "optimizer":
        given = _up_to(float_inputs(evidence) or whole_inputs(evidence)), _up_to(of_role(evidence.forward, "parameter"))
        return "Born here: inputs{}, parameters{} and buffers of this module call were finite.".format(*given)
    if not step.gradients:
        return "Born in the optimizer's step; the dump holds no gradient of this batch that could be to blame."
    lost = f"; it broke {step.bad_parameters:,} of {count(step.parameters, 'parameter')}" if step.bad_parameters else ""
    return f"Born in the optimizer's step: no gradient of this batch was bad ({step.gradients:,} seen){lost}."


def _up_to(values: list[Value]) -> str:
    peaks = [value.abs_max for value in values if value.abs_max is not None]
    return f" (up to {number(max(peaks))})" if peaks else ""


def _weight(evidence: Evidence) -> str:
    first = evidence.first
    if evidence.was_finite is not None:
        finite = f"finite in batch {evidence.was_finite}"
        return f"Inherited: this {first.role} was {finite}, and bad when batch {first.batch} ran."
    if first.batch <= 0:
        return f"Inherited: this {first.role} was bad before the first batch ran."
    return (
        f"Inherited: this {first.role} was bad when batch {first.batch} ran; the step before, or other code, wrote it."
    )


def _maker(evidence: Evidence) -> str:
    return with_class(evidence.around, 50) if evidence.around is not None else "the module around"
