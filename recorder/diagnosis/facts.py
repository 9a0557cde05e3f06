"""Small questions to the evidence that several patterns ask."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import pairwise

from recorder.diagnosis.evidence import Evidence
from recorder.diagnosis.rows import Value
from recorder.schema import DtypeLimits

NARROW_MAX = 1e6
"""A dtype that ends below this (float16, the float8s) runs out of range in ordinary training."""
SMALL_EPS = 1e-8
"""The usual eps of Adam; those of norms go down to 1e-12."""

_NOT_MEASURED = -1.0


def is_class(value: Value, pattern: str) -> bool:
    """Whether the class's name, or the module's own last name, holds this."""
    own_name = value.module.rpartition(".")[2]
    return bool(re.search(pattern, f"{value.module_class} {own_name}", re.IGNORECASE))


def is_norm(value: Value) -> bool:
    return is_class(value, "norm|whiten")


def is_attention(value: Value) -> bool:
    return is_class(value, "attention|attn|softmax")


def is_recurrent(value: Value) -> bool:
    return is_class(value, r"rnn|lstm|gru(?![a-z])|recurrent")


def of_role(values: Iterable[Value], *roles: str) -> list[Value]:
    return [value for value in values if value.role in roles]


def float_inputs(evidence: Evidence) -> list[Value]:
    """Measured inputs of the forward frame that are of a floating dtype."""
    return [v for v in of_role(evidence.forward, "input") if v.dtype in evidence.limits and v.abs_max is not None]


def whole_inputs(evidence: Evidence) -> list[Value]:
    """Measured integer inputs of the forward frame."""
    inputs = of_role(evidence.forward, "input")
    return [v for v in inputs if re.fullmatch(r"u?int\d+", v.dtype) and v.abs_max is not None]


def truth_inputs(evidence: Evidence) -> list[Value]:
    return [v for v in of_role(evidence.forward, "input") if v.dtype == "bool"]


def largest_input(evidence: Evidence) -> float:
    """The abs max over the floating inputs; negative when there is none."""
    return max((v.abs_max for v in float_inputs(evidence) if v.abs_max is not None), default=_NOT_MEASURED)


def has_zero(values: Iterable[Value]) -> bool:
    return any(value.abs_min == 0 for value in values)


def is_narrow(limit: DtypeLimits | None) -> bool:
    return limit is not None and limit.max < NARROW_MAX


def loses_small_eps(limit: DtypeLimits | None) -> bool:
    """Whether an eps of 1e-8 rounds to zero."""
    return limit is not None and limit.smallest_subnormal / 2 > SMALL_EPS


def matrices(evidence: Evidence) -> list[Value]:
    """Weights with two dimensions or more: the module multiplies and adds up."""
    weights = of_role(evidence.forward, "parameter")
    return [weight for weight in weights if len(weight.sizes or ()) >= 2]


def product_reach(evidence: Evidence) -> float:
    """The largest value that inputs times weights can add up to; 0 when that is not known."""
    reach = 0.0
    for weight in matrices(evidence):
        sizes = weight.sizes or (1,)
        terms = max(math.prod(sizes[1:]), sizes[0]) if len(sizes) == 2 else math.prod(sizes[1:])
        reach = max(reach, max(largest_input(evidence), 0.0) * (weight.abs_max or 0.0) * terms)
    return reach


def growth(history: tuple[tuple[int, float], ...]) -> float:
    """By what factor the value grew over the kept batches, when it never shrank; 1 otherwise."""
    sizes = [size for _, size in history]
    rising = all(later >= earlier for earlier, later in pairwise(sizes))
    return sizes[-1] / sizes[0] if len(sizes) >= 2 and rising and sizes[0] > 0 else 1.0
