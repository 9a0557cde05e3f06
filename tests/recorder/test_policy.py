"""What is expected: a -inf known by its surroundings, or what the user lists. Nothing else is ever excused."""

from __future__ import annotations

from typing import Any

import pytest

from recorder.errors import ConfigurationError
from recorder.policy import ExpectedPattern, Policy
from recorder.records import Layout, Statistics, TensorRecord
from recorder.schema import Role
from tests.builders import FINFO, tensor


def policy(*patterns: str) -> Policy:
    return Policy([ExpectedPattern.parse(text) for text in patterns], FINFO)


def mask(role: Role = Role.INPUT, key: str = "mask") -> TensorRecord:
    return tensor(role, key, 0.0, abs_min=0.0, neginf=6)


def scores(role: Role = Role.OUTPUT, key: str = "", **counts: Any) -> TensorRecord:
    return tensor(role, key, 3.5, abs_min=0.1, **counts)


def truths(key: str = "1") -> TensorRecord:
    return TensorRecord(
        Role.INPUT, key, Layout("bool", "(2, 8, 64)", "cpu", 1024), Statistics(0, 1, None, None, 0, 0, 0)
    )


def rule(record: TensorRecord, *beside: TensorRecord, trainable: bool = True) -> str | None:
    return policy().rule("layer", record, beside, trainable)


# what a mask is


def test_an_additive_mask_is_expected_as_an_input_a_buffer_or_a_frozen_parameter() -> None:
    assert rule(mask()) == "additive mask"
    assert rule(mask(Role.BUFFER)) == "mask buffer"
    assert rule(mask(Role.PARAMETER)) == "mask parameter"
    assert rule(scores(Role.PARAMETER, neginf=1), trainable=False) == "mask parameter"


def test_scores_that_were_masked_before_are_expected_as_an_input() -> None:
    assert rule(scores(Role.INPUT, neginf=6)) == "masked scores"


def test_an_output_with_a_mask_among_what_it_is_made_of_is_expected() -> None:
    assert rule(scores(neginf=6), scores(Role.INPUT, "0"), mask()) == "mask passed on"
    assert rule(scores(neginf=6), scores(Role.INPUT, "0"), mask(Role.BUFFER)) == "mask passed on"
    assert rule(scores(neginf=6), mask(Role.OUTPUT)) == "mask passed on"  # a child's


def test_an_output_that_a_boolean_input_masked_is_expected() -> None:
    assert rule(scores(neginf=6), scores(Role.INPUT, "0"), truths()) == "masked by an input"


def test_an_output_that_is_an_input_with_some_values_replaced_is_expected() -> None:
    assert rule(scores(neginf=6), scores(Role.INPUT, "0")) == "filtered logits"


# what a rule may not hide


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
@pytest.mark.parametrize(
    "bad", [{"nan": 1}, {"posinf": 1}, {"nan": 1, "neginf": 5}, {"posinf": 1, "neginf": 5}], ids=str
)
def test_a_nan_or_plus_inf_is_never_expected(role: Role, bad: dict[str, Any]) -> None:
    beside = (mask(), truths(), scores(Role.INPUT, "0"))
    assert rule(scores(role, **bad), *beside, trainable=False) is None
    assert rule(tensor(role, "", None, **bad), *beside, trainable=False) is None


@pytest.mark.parametrize("role", [Role.GRADIENT, Role.GRAD_INPUT, Role.GRAD_OUTPUT, Role.OPTIMIZER_STATE])
def test_no_gradient_and_no_state_is_a_mask(role: Role) -> None:
    assert rule(mask(role), mask()) is None


def test_a_trained_weight_with_a_minus_inf_is_abnormal() -> None:
    assert rule(scores(Role.PARAMETER, neginf=1)) is None


def test_a_minus_inf_beside_values_near_the_limit_is_an_overflow() -> None:
    near = tensor(Role.OUTPUT, "", 60000.0, neginf=1)
    assert rule(near, scores(Role.INPUT, "0"), mask(), truths()) is None
    assert rule(near._replace(role=Role.INPUT)) is None


def test_a_minus_inf_that_may_be_the_logarithm_of_a_zero_is_abnormal() -> None:
    with_zero = tensor(Role.INPUT, "0", 1.0, abs_min=0.0)
    assert rule(scores(neginf=1), with_zero) is None
    assert rule(scores(neginf=1), with_zero, truths()) is None


def test_an_output_larger_than_its_input_is_not_its_filtered_values() -> None:
    assert rule(scores(neginf=1), tensor(Role.INPUT, "0", 1.0, abs_min=0.1)) is None


def test_an_output_of_another_size_is_not_its_filtered_values() -> None:
    assert rule(scores(neginf=1), tensor(Role.INPUT, "0", 9.0, abs_min=0.1, shape=(3,))) is None


def test_an_output_that_came_from_nothing_is_abnormal() -> None:
    assert rule(scores(neginf=1)) is None


def test_a_bias_or_a_running_variance_with_a_minus_inf_is_no_mask() -> None:
    assert rule(tensor(Role.BUFFER, "running_var", 3.5, abs_min=0.1, neginf=1, shape=(8,))) is None
    assert rule(tensor(Role.PARAMETER, "bias", 0.0, abs_min=0.0, neginf=1, shape=(8,))) is None


def test_a_loss_of_minus_inf_masks_nothing() -> None:
    loss = tensor(Role.OUTPUT, "loss", None, neginf=1, shape=())
    assert rule(loss, truths(), mask()) is None


def test_a_layer_with_weights_does_not_hand_its_input_on() -> None:
    weight = tensor(Role.PARAMETER, "weight", 1.0, abs_min=0.1)
    assert rule(scores(neginf=1), weight, scores(Role.INPUT, "0")) is None


# the user's list


@pytest.mark.parametrize(
    ("pattern", "module", "role", "key", "statistics"),
    [
        ("router", "router", Role.OUTPUT, "", {"nan": 1}),
        ("*.router:output", "block.3.router", Role.OUTPUT, "logits.0", {"posinf": 1}),
        ("*:output:logits*", "x", Role.OUTPUT, "logits.0", {"nan": 1}),
        ("mask:buffer:*:-inf", "mask", Role.BUFFER, "table", {"neginf": 1}),
        ("*:input:*:inf", "x", Role.INPUT, "0", {"neginf": 1, "posinf": 1}),
        ("*:input:*:nan", "x", Role.INPUT, "0", {"nan": 2}),
        ("*:grad*", "x", Role.GRAD_INPUT, "0", {"nan": 1}),
        (":output", "", Role.OUTPUT, "", {"nan": 1}),
        ("block.[01]:*", "block.1", Role.GRADIENT, "weight", {"nan": 1}),
    ],
)
def test_what_is_listed_is_expected(
    pattern: str, module: str, role: Role, key: str, statistics: dict[str, Any]
) -> None:
    record = tensor(role, key, None, **statistics)
    assert policy(pattern).rule(module, record, (), True) == f"listed: {pattern}"


@pytest.mark.parametrize(
    ("pattern", "module", "role", "key", "statistics"),
    [
        ("router", "block.router", Role.OUTPUT, "", {"nan": 1}),
        ("*.router:output", "block.router", Role.INPUT, "0", {"nan": 1}),
        ("*:output:logits", "x", Role.OUTPUT, "logits.0", {"nan": 1}),
        ("*:buffer:*:-inf", "mask", Role.BUFFER, "table", {"neginf": 1, "nan": 1}),
        ("*:input:*:inf", "x", Role.INPUT, "0", {"nan": 1}),
        ("*:input:*:+inf", "x", Role.INPUT, "0", {"neginf": 1, "posinf": 1}),
        ("Router:output", "router", Role.OUTPUT, "", {"nan": 1}),
    ],
)
def test_what_is_not_listed_is_not(pattern: str, module: str, role: Role, key: str, statistics: dict[str, Any]) -> None:
    record = tensor(role, key, None, **statistics)
    assert policy(pattern).listed(module, record) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:b:c:d:e", "is not MODULE"),
        ("*:outputs", "role must be one of parameter, buffer, input, output"),
        ("*:output:*:infinite", r"kind must be one of nan, inf, \+inf, -inf"),
    ],
)
def test_a_pattern_that_is_none_says_what_one_is(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        ExpectedPattern.parse(text)
    assert text in str(caught.value)
