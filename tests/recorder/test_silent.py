"""Silent failures are warned of, with numbers, and never trip; healthy runs have no warnings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recorder import Recorder
from recorder.schema import RunInfo, SilentWarning


class Run(nn.Module):
    """Runs a function of its input."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class RMSNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def warned(tmp_path: Path, model: nn.Module, train: Callable[[nn.Module], None]) -> list[SilentWarning]:
    """All warnings of a run, which has no trigger."""
    with Recorder(model, tmp_path) as recorder:
        train(model)
    assert recorder.dumps == []
    return list(RunInfo.from_json((recorder.run_dir / "_run.json").read_text()).warnings)


def forward(x: torch.Tensor, batches: int = 1) -> Callable[[nn.Module], None]:
    def train(model: nn.Module) -> None:
        for _ in range(batches):
            model(x)

    return train


def backward(x: torch.Tensor, gradient: torch.Tensor) -> Callable[[nn.Module], None]:
    return lambda model: model(x).backward(gradient)


def kinds(found: list[SilentWarning]) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.module, one.role, one.phase) for one in found]


def half(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float16)


# zeroed and underflow in the forward


def test_a_large_input_whose_square_overflows_to_an_output_of_zeros(tmp_path: Path) -> None:
    found = warned(tmp_path, nn.Sequential(RMSNorm()), forward(half(300.0, -400.0)))
    assert kinds(found) == [("zeroed", "0", "output", "forward")]  # and not the root, which hands it on
    assert found[0].numbers["input_abs_max"] == 400.0
    assert "its square does not fit float16" in found[0].text


def test_a_small_input_whose_square_vanishes(tmp_path: Path) -> None:
    found = warned(tmp_path, nn.Sequential(Run(lambda x: x * x)), forward(half(1e-5, 1e-4)))
    assert ("underflow", "0", "output", "forward") in kinds(found)


@pytest.mark.parametrize(
    "module",
    [nn.ReLU(), nn.Dropout(1.0), nn.Hardtanh(0.0, 1.0), nn.Threshold(1e6, 0.0)],
    ids=lambda module: type(module).__name__,
)
def test_what_may_put_out_zeros_is_not_warned_of(tmp_path: Path, module: nn.Module) -> None:
    assert warned(tmp_path, nn.Sequential(module), forward(half(-300.0, -400.0))) == []


def test_a_layer_that_begins_at_zero_is_not_warned_of(tmp_path: Path) -> None:
    """As the second half of an adapter, or the last layer of a residual branch, does."""
    layer = nn.Linear(2, 2).half()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    assert warned(tmp_path, nn.Sequential(layer), forward(half(300.0, 400.0), batches=12)) == []


# dead


def test_a_unit_that_puts_out_zeros_batch_after_batch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    nn.init.constant_(next(iter(model[0].parameters())), -1.0)
    nn.init.zeros_(list(model[0].parameters())[1])
    found = warned(tmp_path, model, forward(torch.ones(1, 2), batches=8))
    assert ("dead", "1", "output", "forward") in kinds(found)
    assert found[0].numbers["batches"] == 8
    assert found[0].batch == 7


def test_one_that_comes_back_to_life_is_not(tmp_path: Path) -> None:
    def train(model: nn.Module) -> None:
        for batch in range(20):
            model(torch.full((1, 2), 1.0 if batch % 5 == 4 else -1.0))

    assert warned(tmp_path, nn.Sequential(nn.ReLU()), train) == []


# headroom


def test_a_value_near_the_limit_with_its_growth(tmp_path: Path) -> None:
    def train(model: nn.Module) -> None:
        for batch in range(3):
            model(half(8000.0 * 1.5**batch))

    found = warned(tmp_path, nn.Sequential(Run(lambda x: x * 2.0)), train)
    [warning] = [one for one in found if one.module == "0"]
    assert (warning.kind, warning.batch) == ("headroom", 2)
    assert warning.numbers["abs_max"] == 36000.0
    assert warning.numbers["binades_left"] == pytest.approx(math.log2(65504 / 36000))
    assert "at this growth it overflows in about 2 batches" in warning.text


def test_a_mask_of_the_lowest_number_is_not_near_the_limit(tmp_path: Path) -> None:
    lowest = torch.finfo(torch.float16).min
    model = nn.Sequential(Run(lambda x: x.masked_fill(x < 0, lowest)), nn.Softmax(-1))
    assert warned(tmp_path, model, forward(half(-1.0, 2.0))) == []


# vanishing gradients


def test_a_gradient_that_is_wholly_subnormal(tmp_path: Path) -> None:
    found = warned(tmp_path, nn.Sequential(nn.Linear(2, 2).half()), backward(half(1.0, 1.0), half(1e-6, 1e-6)))
    assert found[0].kind == "underflow"
    assert "wholly subnormal in float16" in found[0].text


def test_a_gradient_that_vanished_on_its_way(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2).half(), Run(lambda x: x * 1e-3))
    found = warned(tmp_path, model, backward(half(1.0, 1.0), half(1e-5, 1e-5)))
    assert any(one.kind == "underflow" and "zero" in one.text for one in found)


def test_a_relu_without_active_units_is_no_vanished_gradient(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    nn.init.constant_(list(model[0].parameters())[1], -100.0)
    assert warned(tmp_path, model, backward(torch.ones(1, 2), torch.ones(1, 2))) == []


# stalled


def stalling(dtype: torch.dtype, rate: float) -> Callable[[nn.Module], None]:
    def train(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2, dtype=dtype)).sum().backward()
            optimizer.step()

    return train


def test_a_step_that_is_rounded_away(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False).bfloat16())
    nn.init.ones_(next(model.parameters()))
    found = warned(tmp_path, model, stalling(torch.bfloat16, 1e-4))
    assert kinds(found) == [("stalled", "0", "parameter", "optimizer")]
    assert found[0].key == "weight"
    assert found[0].numbers["gradient_abs_max"] == 1.0


def test_weights_that_change_by_the_same_up_and_down_are_no_stall(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    nn.init.ones_(next(model.parameters()))

    def train(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-20)
        model(torch.tensor([[1.0, -2.0, -2.0, 1.0]])).sum().backward()
        optimizer.step()  # each weight moves by as many units in the last place, two up and two down

    assert warned(tmp_path, model, train) == []


def test_a_step_of_rate_zero_or_without_gradient_is_no_stall(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False).bfloat16())
    assert warned(tmp_path, model, stalling(torch.bfloat16, 0.0)) == []
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    frozen[0].requires_grad_(False)
    assert warned(tmp_path, frozen, stalling(torch.float32, 0.1)) == []


# blind


def test_a_module_whose_forward_is_called_past_its_hooks(tmp_path: Path) -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.block.forward(x)

    found = warned(tmp_path, Direct(), lambda model: model(torch.randn(1, 3, 4)).sum().backward())
    assert ("blind", "block") in [(one.kind, one.module) for one in found]


def test_a_model_that_steps_without_having_been_called(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))

    def train(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        nn.Sequential.forward(model, torch.ones(1, 2)).sum().backward()  # type: ignore[arg-type, no-untyped-call]
        optimizer.step()

    found = warned(tmp_path, model, train)
    assert "blind" in {one.kind for one in found}


# healthy


def healthy(dtype: torch.dtype, autocast: bool) -> Callable[[nn.Module], None]:
    def train(model: nn.Module) -> None:
        model.to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", enabled=autocast, init_scale=256.0)
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=autocast):
                loss = model(torch.randn(4, 6, 8, dtype=dtype)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return train


@pytest.mark.parametrize(
    "train",
    [healthy(torch.float32, False), healthy(torch.float32, True), healthy(torch.bfloat16, False)],
    ids=["fp32", "fp16 autocast", "bf16"],
)
def test_a_healthy_run_has_no_warning(tmp_path: Path, train: Callable[[nn.Module], None]) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 1))
    assert warned(tmp_path, model, train) == []
