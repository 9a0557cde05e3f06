"""Where a value went bad: born in a module, inherited from its data, or lying in a weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recorder import OverflowDetected, Recorder, read
from recorder.dump import read_info
from recorder.schema import Trigger
from tests.recorder.watching import Bomb

INF, NAN = float("inf"), float("nan")


class Run(nn.Module):
    """Runs a function of its children and its inputs."""

    def __init__(self, function: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def found(tmp_path: Path, model: nn.Module, *args: Any, **kwargs: Any) -> Trigger | None:
    """The trigger of one batch, if there is one."""
    try:
        with Recorder(model, tmp_path):
            model(*args, **kwargs)
    except OverflowDetected as overflow:
        return overflow.trigger
    return None


def place(trigger: Trigger | None) -> tuple[str | None, str | None, str | None] | None:
    return None if trigger is None else (trigger.module, trigger.role, trigger.key)


def linear() -> nn.Linear:
    return nn.Linear(2, 2)


# born in a module


def test_a_module_whose_output_goes_bad_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), nn.Sequential(linear(), Bomb()), linear())
    assert place(found(tmp_path, model, torch.ones(1, 2))) == ("1.1", "output", "")


def test_a_parents_own_code_is_the_parents(tmp_path: Path) -> None:
    block = Run(lambda self, x: self.inner(x) / 0, inner=linear())
    assert place(found(tmp_path, nn.Sequential(block), torch.ones(1, 2))) == ("0", "output", "")


def test_code_between_two_modules_is_told_by_the_input_of_the_second(tmp_path: Path) -> None:
    block = Run(lambda self, x: self.second(self.first(x) / 0), first=linear(), second=linear())
    assert place(found(tmp_path, nn.Sequential(block), torch.ones(1, 2))) == ("0.second", "input", "0")


def test_of_several_outputs_the_bad_one_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(Run(lambda self, x: (x, {"scores": [x, x / 0]})))
    assert place(found(tmp_path, model, torch.ones(1, 2))) == ("0", "output", "1.scores.1")


@pytest.mark.parametrize("value", [INF, NAN])
def test_one_bad_element_is_enough(tmp_path: Path, value: float) -> None:
    model = nn.Sequential(Bomb(value=value), linear())
    assert place(found(tmp_path, model, torch.ones(500, 2))) == ("0", "output", "")


def test_a_minus_inf_between_unchanged_values_passes_for_a_mask_until_more_is_made_of_it(tmp_path: Path) -> None:
    model = nn.Sequential(Bomb(value=-INF), nn.Softmax(-1))
    assert found(tmp_path, model, torch.ones(500, 2)) is None
    model = nn.Sequential(Bomb(value=-INF), linear())
    assert place(found(tmp_path, model, torch.ones(500, 2))) == ("0", "output", "")


def test_only_the_frame_that_made_it_is_an_origin(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), nn.Sequential(Bomb(), linear()), linear())
    with Recorder(model, tmp_path, on_overflow="ignore") as recorder:
        model(torch.ones(1, 2))
        rows = read(recorder.run_dir)
    assert set(rows[rows.origin].module) == {"1.0"}
    assert set(rows[rows.flagged].module) == {"1.0", "1.1", "1", "2", ""}


def test_a_value_that_is_clamped_within_its_parent_is_found(tmp_path: Path) -> None:
    block = Run(lambda self, x: self.inner(x).nan_to_num(), inner=Bomb())
    assert place(found(tmp_path, nn.Sequential(block), torch.ones(1, 2))) == ("0.inner", "output", "")


def test_the_call_of_a_module_that_runs_several_times_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(Run(lambda self, x: self.inner(self.inner(self.inner(x))), inner=Bomb(calls=(2,))))
    trigger = found(tmp_path, model, torch.ones(1, 2))
    assert trigger is not None
    assert (trigger.module, trigger.call) == ("0.inner", 2)


# inherited


def test_bad_data_are_the_roots_input(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(linear()), linear())
    assert place(found(tmp_path, model, torch.tensor([[1.0, NAN]]))) == ("", "input", "0")


def test_bad_data_that_the_model_masks_out_are_healthy(tmp_path: Path) -> None:
    """Targets that are missing are nan; the loss takes them out."""
    loss = Run(lambda _, out, target: (out - target)[target.isfinite()].square().mean())
    model = Run(lambda self, x, target: self.loss(self.body(x), target), body=linear(), loss=loss)
    target = torch.tensor([[1.0, NAN], [2.0, 3.0]])
    assert found(tmp_path, model, torch.ones(2, 2), target=target) is None


def test_bad_data_that_are_masked_too_late_are_named(tmp_path: Path) -> None:
    loss = Run(lambda _, out, target: ((out - target).square() * target.isfinite()).mean())
    model = Run(lambda self, x, target: self.loss(self.body(x), target), body=linear(), loss=loss)
    target = torch.tensor([[1.0, NAN], [2.0, 3.0]])
    assert place(found(tmp_path, model, torch.ones(2, 2), target=target)) == ("", "input", "target")


def test_the_outermost_module_that_received_it_is_named(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Sequential(linear()))
    block = Run(lambda self, x: self.inner(x * NAN), inner=inner)
    assert place(found(tmp_path, nn.Sequential(block), torch.ones(1, 2))) == ("0.inner", "input", "0")


# in a weight


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_a_bad_weight_is_named_before_what_it_spoils(tmp_path: Path, value: float) -> None:
    model = nn.Sequential(linear(), nn.Sequential(linear()))
    with torch.no_grad():
        next(model[1].parameters())[0, 0] = value
    assert place(found(tmp_path, model, torch.ones(1, 2))) == ("1.0", "parameter", "weight")


def test_a_bad_buffer_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), nn.BatchNorm1d(2).eval())
    model[1].get_buffer("running_var").fill_(NAN)
    assert place(found(tmp_path, model, torch.ones(1, 2))) == ("1", "buffer", "running_var")


def test_a_bad_buffer_that_a_module_spoils_itself_is_of_that_module(tmp_path: Path) -> None:
    """The running statistics take the inf in; the input is where it came from."""
    model = nn.Sequential(Bomb(), nn.BatchNorm1d(2))
    assert place(found(tmp_path, model, torch.ones(3, 2))) == ("0", "output", "")


def test_a_bad_weight_that_is_never_used_is_named_all_the_same(tmp_path: Path) -> None:
    model = Run(lambda self, x: self.used(x), used=linear(), unused=linear())
    with torch.no_grad():
        model.unused.bias[0] = NAN  # type: ignore[operator, union-attr]
    assert place(found(tmp_path, model, torch.ones(1, 2))) == ("unused", "parameter", "bias")


# legitimate


def masked_softmax(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x + mask).softmax(-1)


def test_what_was_expected_is_marked_and_counted(tmp_path: Path) -> None:
    mask = torch.tensor([[0.0, -INF], [0.0, 0.0]])
    model = Run(lambda self, x: self.attention(x, mask=mask), attention=Run(masked_softmax))
    with Recorder(model, tmp_path) as recorder:
        for _ in range(3):
            model(torch.randn(2, 2))
        rows = read(recorder.run_dir)
        dump = recorder.spill()
    assert rows[rows.flagged].expected.all()
    [suppressed] = read_info(dump).suppressed
    assert (suppressed.rule, suppressed.module, suppressed.role, suppressed.key) == (
        "additive mask", "attention", "input", "mask",
    )  # fmt: skip
    assert suppressed.count >= 3


def test_a_row_that_is_masked_whole_makes_a_nan_and_is_found(tmp_path: Path) -> None:
    mask = torch.tensor([[-INF, -INF], [0.0, 0.0]])
    model = Run(lambda self, x: self.attention(x, mask=mask), attention=Run(masked_softmax))
    assert place(found(tmp_path, model, torch.randn(2, 2))) == ("attention", "output", "")


def test_a_logarithm_of_zero_is_found_though_it_is_a_minus_inf(tmp_path: Path) -> None:
    model = nn.Sequential(nn.ReLU(), Run(lambda _, x: x.log()))
    assert place(found(tmp_path, model, torch.tensor([[-1.0, 2.0]]))) == ("1", "output", "")


def test_an_overflow_to_minus_inf_is_found_though_a_mask_is_there(tmp_path: Path) -> None:
    model = nn.Sequential(Run(lambda _, x: x * -3.0))
    values = torch.tensor([[60000.0, 20000.0]], dtype=torch.float16)
    assert place(found(tmp_path, model, values)) == ("0", "output", "")


def test_a_listed_value_is_no_finding_and_a_nan_of_it_is(tmp_path: Path) -> None:
    def run(value: float) -> list[Path]:
        model = nn.Sequential(Bomb(value=value), Run(lambda _, x: x.clamp(-1, 1)))
        with Recorder(model, tmp_path, expected=["0:output:*:inf", "1:input:*:inf"], on_overflow=lambda _: None) as one:
            model(torch.ones(1, 2))
        return one.dumps

    assert run(INF) == []
    assert len(run(NAN)) == 1
