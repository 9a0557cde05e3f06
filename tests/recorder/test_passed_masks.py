"""A -inf is taken for a mask until a NaN is made of it: then it is named, unless a mask could have done the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from recorder import Recorder
from recorder.schema import Trigger

NEGATIVE_INFINITY = float("-inf")


def first_trigger(model: nn.Module, directory: Path, *inputs: Tensor) -> tuple[str, str, str] | None:
    triggers: list[Trigger] = []
    with Recorder(model, directory, on_overflow=triggers.append):
        model(*inputs)
    return None if not triggers else (triggers[0].module or "", triggers[0].role or "", triggers[0].key or "")


def with_one_neginf(tensor: Tensor) -> Tensor:
    mask = torch.zeros(tensor.shape, dtype=torch.bool)
    mask.view(-1)[3] = True
    return tensor.masked_fill(mask, NEGATIVE_INFINITY)


class Block(nn.Module):
    """A linear layer, code of its own, and a norm after a residual sum. `spoilt` says where one -inf is written."""

    def __init__(self, spoilt: str) -> None:
        super().__init__()
        self.spoilt = spoilt
        self.first = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.0)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = self.drop(with_one_neginf(y) if self.spoilt == "drop" else y)
        y = self.norm(x + y)
        y = with_one_neginf(y) if self.spoilt == "head" else y
        return torch.as_tensor(self.head(y))


def test_what_was_passed_on_as_if_masked_is_named_when_a_norm_makes_nan_of_it(tmp_path: Path) -> None:
    assert first_trigger(Block("drop"), tmp_path, torch.randn(2, 8)) == ("drop", "input", "0")


def test_a_linear_layer_is_not_accused_of_the_infinity_that_it_was_given(tmp_path: Path) -> None:
    assert first_trigger(Block("head"), tmp_path, torch.randn(2, 8)) == ("head", "input", "0")


class Scores(nn.Module):
    """Attention weights: the scores come out of a module, and what is done with them is the parent's code."""

    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.is_masked = is_masked
        self.score = Masked()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        scores = self.score(x, keep)
        if not self.is_masked:
            scores = scores - scores.amin()  # -inf minus -inf
        return torch.as_tensor(self.mix(scores.softmax(-1)))


class Masked(nn.Module):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return x.masked_fill(~keep, NEGATIVE_INFINITY)


def test_masked_scores_that_a_softmax_takes_are_no_fault(tmp_path: Path) -> None:
    keep = torch.ones(2, 8, dtype=torch.bool)
    keep[:, 5:] = False
    assert first_trigger(Scores(is_masked=True), tmp_path, torch.randn(2, 8), keep) is None


def test_a_row_that_is_masked_wholly_is_no_fault_of_the_scores(tmp_path: Path) -> None:
    keep = torch.ones(2, 8, dtype=torch.bool)
    keep[1] = False
    assert first_trigger(Scores(is_masked=True), tmp_path, torch.randn(2, 8), keep) == ("mix", "input", "0")


def test_a_lone_infinity_that_the_code_around_made_nan_of_is_named_at_the_module_that_put_it_out(
    tmp_path: Path,
) -> None:
    keep = torch.ones(2, 8, dtype=torch.bool)
    keep[0, 3] = False
    assert first_trigger(Scores(is_masked=False), tmp_path, torch.randn(2, 8), keep) == ("score", "output", "")


def test_what_the_user_lists_is_not_accused(tmp_path: Path) -> None:
    triggers: list[Trigger] = []
    model = Block("drop")
    with Recorder(model, tmp_path, on_overflow=triggers.append, expected=["drop:*:*:-inf"]):
        model(torch.randn(2, 8))
    assert [(t.module, t.role) for t in triggers] == [("norm", "input")]
