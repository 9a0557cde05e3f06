"""What ran without its hooks is warned of; what was merely used in another way than by a call is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recorder import Recorder
from recorder.schema import RunInfo


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.norm(self.linear(x)))


class Outer(nn.Module):
    """Uses what it holds in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.inner = Inner()
        self.leaf = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "forward of a module":
            x = self.inner.forward(x)
        elif self.way == "its children by themselves":
            x = self.inner.norm(self.inner.linear(x))
        else:
            x = self.inner(x)
        if self.way == "forward of a leaf":
            return self.leaf.forward(x)
        if self.way == "weights of a leaf":
            return F.linear(x, self.leaf.weight, self.leaf.bias)
        return torch.as_tensor(self.leaf(x))


def blind_spots(model: nn.Module, directory: Path) -> list[str]:
    with Recorder(model, directory) as recorder:
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            assert not any("forward" in module.__dict__ for module in model.modules())
    info = RunInfo.from_json((recorder.run_dir / "_run.json").read_text())
    return [warning.module for warning in info.warnings if warning.kind == "blind"]


@pytest.mark.parametrize(("way", "named"), [("forward of a module", "inner"), ("forward of a leaf", "leaf")])
def test_a_forward_that_is_called_directly_is_named(way: str, named: str, tmp_path: Path) -> None:
    assert blind_spots(Outer(way), tmp_path) == [named]


@pytest.mark.parametrize("way", ["calls alone", "its children by themselves", "weights of a leaf"])
def test_weights_and_children_may_be_used_without_a_call(way: str, tmp_path: Path) -> None:
    assert blind_spots(Outer(way), tmp_path) == []


def test_a_forward_of_the_model_s_own_is_given_back(tmp_path: Path) -> None:
    model = Outer("weights of a leaf")
    own = model.leaf.forward
    model.leaf.forward = own  # type: ignore[method-assign]
    with Recorder(model, tmp_path):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
    assert model.leaf.__dict__["forward"] is own
