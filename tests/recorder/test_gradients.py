"""The backward phase: gradients at the outputs and inputs of each module call, and of each parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recorder import OverflowDetected, Recorder, read
from recorder.dump import read_info
from tests.recorder.watching import Watch


class Scale(torch.autograd.Function):
    """Identity whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.factor, None


class GradientScale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Scale.apply(x, self.factor)  # type: ignore[no-untyped-call]
        return out


def backward(rows: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Module, role and key of the backward records, in order."""
    found = rows[rows.phase == "backward"]
    return list(zip(found.module, found.role, found.key, strict=True))


def gradient(rows: pd.DataFrame, module: str, role: str, key: str = "") -> list[float]:
    found = rows[(rows.phase == "backward") & (rows.module == module) & (rows.role == role) & (rows.key == key)]
    values: list[float] = found.abs_max.tolist()
    return values


def test_gradients_are_recorded_in_the_order_in_which_autograd_makes_them(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    recording(model)
    model(torch.ones(3, 2)).sum().backward()
    order = [(module, role) for module, role, _ in backward(recording.rows())]
    assert order.index(("1", "grad_output")) < order.index(("1", "grad_input"))
    assert order.index(("1", "grad_input")) < order.index(("0", "grad_output"))
    assert order.index(("1", "gradient")) < order.index(("0", "gradient"))
    assert sorted(backward(recording.rows())) == sorted(
        [
            ("", "grad_output", ""),
            ("1", "grad_output", ""),
            ("1", "grad_input", "0"),
            ("1", "gradient", "weight"),
            ("0", "grad_output", ""),
            ("0", "gradient", "weight"),
            ("0", "gradient", "bias"),
        ]
    )


def test_their_numbers_are_those_of_autograd(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), GradientScale(3.0), nn.Linear(2, 1, bias=False))
    recording(model)
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    (model(x) * 5).sum().backward()
    rows = recording.rows()
    last = model[2].weight
    assert isinstance(last, torch.Tensor)
    assert gradient(rows, "2", "grad_output") == [5.0]
    assert gradient(rows, "2", "grad_input", "0") == pytest.approx([(5 * last).abs().max().item()])
    assert gradient(rows, "1", "grad_input", "0") == pytest.approx([(15 * last).abs().max().item()])
    for name, parameter in model.named_parameters():
        module, _, key = name.rpartition(".")
        assert parameter.grad is not None
        assert gradient(rows, module, "gradient", key) == [parameter.grad.abs().max().item()]
    assert x.grad is not None
    assert gradient(rows, "0", "grad_input", "0") == [x.grad.abs().max().item()]
    assert gradient(rows, "", "grad_input", "0") == [x.grad.abs().max().item()]


def test_accumulated_gradients_are_recorded_as_they_have_accumulated(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    recording(model)
    for _ in range(3):
        model(torch.ones(1, 1)).sum().backward()
    assert gradient(recording.rows(), "0", "gradient", "weight") == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=["inf", "nan"])
def test_the_module_that_made_a_bad_gradient_is_named(tmp_path: Path, value: float) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(GradientScale(value)), nn.Linear(2, 1))
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        model(torch.ones(3, 2)).sum().backward()
    trigger = caught.value.trigger
    assert (trigger.phase, trigger.module, trigger.role, trigger.key) == ("backward", "1.0", "grad_input", "0")
    rows = read(caught.value.dump or "")
    frame = rows[rows.seq == trigger.seq]
    assert frame[frame.role == "grad_output"].flagged.tolist() == [False]
    assert frame[frame.role == "grad_input"].origin.tolist() == [True]


def test_code_after_the_model_that_made_it_is_told_by_the_roots_grad_output(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        (model(torch.ones(3, 2)) * 0).sqrt().sum().backward()
    trigger = caught.value.trigger
    assert (trigger.module, trigger.role) == ("", "grad_output")


def test_code_between_modules_that_made_it_is_the_parents(tmp_path: Path) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = (self.first(x) * 0).sqrt()
            out: torch.Tensor = self.second(hidden)
            return out

    model = nn.Sequential(Between())
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        model(torch.ones(3, 2)).sum().backward()
    assert (caught.value.trigger.module, caught.value.trigger.role) in [("0.first", "grad_output"), ("0", "grad_input")]


def test_a_parameters_own_bad_gradient_is_named(tmp_path: Path) -> None:
    """The weight's gradient overflows in fp16 though the activations' does not."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False).half())
    nn.init.constant_(next(model.parameters()), 1e-3)
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        (model(torch.full((4, 2), 60000.0).half()) * 0.001).backward(torch.full((4, 1), 1000.0).half())
    trigger = caught.value.trigger
    assert (trigger.phase, trigger.module, trigger.role, trigger.key) == ("backward", "0", "gradient", "weight")


def test_a_listed_gradient_is_recorded_and_counted(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), GradientScale(float("inf")))
    with Recorder(model, tmp_path, expected=["*:grad*", "*:gradient"]) as recorder:
        model(torch.ones(3, 2)).sum().backward()
        rows = read(recorder.run_dir)
        dump = recorder.spill()
    bad = rows[rows.flagged]
    assert bad.expected.all()
    assert len(bad)
    assert sum(one.count for one in read_info(dump).suppressed) == len(bad.drop_duplicates(["seq", "role", "key"]))


# ways of going back


def counts(rows: pd.DataFrame) -> dict[str, int]:
    found: Any = rows[rows.phase == "backward"].groupby("module", observed=True).seq.nunique().to_dict()
    return dict(found)


def test_a_second_backward_through_a_retained_graph_is_recorded_again(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    recording(model)
    loss = model(torch.ones(1, 1)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    rows = recording.rows()
    assert gradient(rows, "0", "grad_output") == [1.0, 1.0]
    assert gradient(rows, "0", "gradient", "weight") == [1.0, 2.0]


def test_gradients_that_are_asked_for_are_recorded_and_nothing_accumulates(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    recording(model)
    torch.autograd.grad(model(torch.ones(3, 2)).sum(), list(model.parameters()))
    roles = {role for _, role, _ in backward(recording.rows())}
    assert "grad_output" in roles
    assert "gradient" not in roles


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_a_checkpointed_part_has_the_gradients_of_its_recomputation(recording: Watch, reentrant: bool) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    model = nn.Sequential(nn.Linear(2, 2), Checkpointed())
    recording(model)
    model(torch.ones(3, 2)).sum().backward()
    rows = recording.rows()
    assert len(gradient(rows, "1.inner.0", "gradient", "weight")) == 1
    assert len(gradient(rows, "0", "gradient", "weight")) == 1
    assert gradient(rows, "1.inner.0", "grad_output")


def test_a_bad_gradient_inside_a_checkpoint_is_named(tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), GradientScale(float("inf")), nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = nn.Sequential(Checkpointed())
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        model(torch.ones(3, 2)).sum().backward()
    assert caught.value.trigger.module == "0.inner.1"
    assert caught.value.trigger.batch == 0


def test_frozen_parts_have_no_backward(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    recording(model)
    model(torch.ones(3, 2)).sum().backward()
    assert "0" not in counts(recording.rows())


def test_outputs_that_are_not_used_hold_nothing_back(recording: Watch) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.body(x)
            return hidden * 2, hidden * 3

    model = nn.Sequential(Two())
    recording(model)
    for _ in range(2):
        model(torch.ones(3, 2))[0].sum().backward()
    rows = recording.rows()
    assert gradient(rows, "0", "grad_output", "0") == [1.0, 1.0]
    assert gradient(rows, "0", "grad_output", "1") == []


def test_parameters_are_added_later_and_watched(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    recording(model)
    model(torch.ones(1, 2)).sum().backward()
    model.append(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    assert len(gradient(recording.rows(), "1", "gradient", "weight")) == 1


def test_a_lazy_parameter_is_watched_from_its_first_batch_on(recording: Watch) -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    recording(model)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    assert len(gradient(recording.rows(), "0", "gradient", "weight")) == 2


def test_a_tensor_that_is_changed_in_place_has_the_gradient_of_what_it_was_to_each_module(recording: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(inplace=True), GradientScale(2.0))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))  # type: ignore[operator]
    recording(model)
    model(torch.tensor([[1.0, -1.0]])).sum().backward()
    rows = recording.rows()
    assert gradient(rows, "2", "grad_output") == [1.0]
    assert gradient(rows, "1", "grad_output") == [2.0]
    assert gradient(rows, "0", "gradient", "weight") == [2.0]


@pytest.mark.parametrize(
    "bad",
    [
        lambda x: (x * 0).sqrt(),
        lambda x: (x - x).abs().pow(0.5),
        lambda x: torch.where(x > x.max() + 1, x / (x - x), x),
        lambda x: torch.linalg.eigh(torch.eye(2) * (1 + 0 * x.sum()))[1].sum() + x,
    ],
    ids=["sqrt at 0", "power at 0", "dead branch of where", "equal eigenvalues"],
)
def test_a_forward_that_is_fine_and_a_backward_that_is_not(
    tmp_path: Path, bad: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return bad(x)

    model = nn.Sequential(nn.Linear(2, 2), Bad())
    with pytest.raises(OverflowDetected) as caught, Recorder(model, tmp_path):
        model(torch.ones(3, 2)).sum().backward()
    trigger = caught.value.trigger
    assert (trigger.phase, trigger.module, trigger.role, trigger.batch) == ("backward", "1", "grad_input", 0)
