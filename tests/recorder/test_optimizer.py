"""The optimizer phase: weights and floating state after each step, of every optimizer of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from recorder import OverflowDetected, Recorder, read
from recorder.dump import read_info
from tests.recorder.watching import trigger_of

Make = Callable[[Any], torch.optim.Optimizer]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(torch.ones(4, 2)).square().mean()
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def stepped(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows.phase == "optimizer"]


OPTIMIZERS: list[tuple[str, Make, set[str]]] = [
    ("SGD", lambda p: torch.optim.SGD(p, lr=0.1), set()),
    ("SGD with momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"momentum_buffer"}),
    ("Adam", lambda p: torch.optim.Adam(p), {"exp_avg", "exp_avg_sq"}),
    ("AdamW foreach", lambda p: torch.optim.AdamW(p, foreach=True), {"exp_avg", "exp_avg_sq"}),
    ("AdamW fused", lambda p: torch.optim.AdamW(p, fused=True), {"exp_avg", "exp_avg_sq"}),
    ("AdamW amsgrad", lambda p: torch.optim.AdamW(p, amsgrad=True), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    ("RMSprop", lambda p: torch.optim.RMSprop(p), {"square_avg"}),
    ("Adagrad", lambda p: torch.optim.Adagrad(p), {"sum"}),
    ("Adadelta", lambda p: torch.optim.Adadelta(p), {"square_avg", "acc_delta"}),
    ("Adamax", lambda p: torch.optim.Adamax(p), {"exp_avg", "exp_inf"}),
    ("NAdam", lambda p: torch.optim.NAdam(p), {"exp_avg", "exp_avg_sq", "mu_product"}),
    ("Rprop", lambda p: torch.optim.Rprop(p), {"prev", "step_size"}),
    ("Adafactor", lambda p: torch.optim.Adafactor(p), {"row_var", "col_var", "variance"}),
    ("LBFGS", lambda p: torch.optim.LBFGS(p, max_iter=2), {"d", "prev_flat_grad"}),
]


@pytest.mark.parametrize(("make", "state"), [case[1:] for case in OPTIMIZERS], ids=[case[0] for case in OPTIMIZERS])
def test_weights_and_state_are_recorded_after_each_step(tmp_path: Path, make: Make, state: set[str]) -> None:
    net = model()
    optimizer = make(net.parameters())
    with Recorder(net, tmp_path, optimizer=optimizer) as recorder:
        for _ in range(2):
            step(net, optimizer)
        assert recorder.step == 2
        rows = stepped(read(recorder.run_dir))
    assert set(rows.module) == {"0", "2"}
    weights = rows[rows.role == "parameter"]
    assert set(weights.key) == {"weight", "bias"}
    last = weights[(weights.module == "0") & (weights.key == "weight")].abs_max.iloc[-1]
    assert last == next(net.parameters()).abs().max().item()
    kept = rows[rows.role == "optimizer_state"]
    assert state <= {key.partition(".")[2] for key in kept.key}
    assert not kept.abs_max.isna().any()
    assert not rows.flagged.any()


def test_sparse_gradients_are_stepped(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    optimizer = torch.optim.SparseAdam(list(net.parameters()))
    with Recorder(net, tmp_path, optimizer=optimizer) as recorder:
        net(torch.tensor([1, 3])).square().sum().backward()
        optimizer.step()
        rows = read(recorder.run_dir)
    assert rows[(rows.phase == "backward") & (rows.role == "gradient")].abs_max.notna().all()
    assert "weight.exp_avg" in set(stepped(rows).key)


def test_an_optimizer_that_was_not_handed_over_is_found(tmp_path: Path) -> None:
    net = model()
    with Recorder(net, tmp_path) as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step(net, optimizer)
        assert recorder.step == 1
        assert len(stepped(read(recorder.run_dir)))


def test_an_optimizer_of_another_model_is_none_of_ours(tmp_path: Path) -> None:
    net, other = model(), model()
    with Recorder(net, tmp_path) as recorder:
        step(other, torch.optim.SGD(other.parameters(), lr=0.1))
        assert recorder.step == 0
        assert len(read(recorder.run_dir)) == 0


def test_several_optimizers_each_record_their_own_parameters(tmp_path: Path) -> None:
    net = model()
    first, second = torch.optim.Adam(net[0].parameters()), torch.optim.SGD(net[2].parameters(), lr=0.1)
    with Recorder(net, tmp_path, optimizer=[first, second]) as recorder:
        net(torch.ones(4, 2)).sum().backward()
        first.step()
        assert set(stepped(read(recorder.run_dir)).module) == {"0"}
        second.step()
        assert set(stepped(read(recorder.run_dir)).module) == {"0", "2"}
        assert recorder.step == 2


def test_a_weight_that_dies_in_a_step_is_of_that_batch_and_phase(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder(net, tmp_path, optimizer=optimizer):
        step(net, optimizer)
        optimizer.param_groups[0]["lr"] = float("nan")
        with pytest.raises(OverflowDetected) as caught:
            step(net, optimizer)
    trigger = caught.value.trigger
    assert (trigger.batch, trigger.phase, trigger.module, trigger.role) == (1, "optimizer", "0", "parameter")
    assert trigger.step == 1


def test_a_state_that_dies_before_its_weight_is_named(tmp_path: Path) -> None:
    """exp_avg_sq of a gradient of 1e30 does not fit fp32; the weight it divides stays finite."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.Adam(net.parameters())
    with Recorder(net, tmp_path, optimizer=optimizer):
        net(torch.full((1, 1), 1e30)).sum().backward()
        with pytest.raises(OverflowDetected) as caught:
            optimizer.step()
    trigger = caught.value.trigger
    assert (trigger.phase, trigger.role, trigger.key) == ("optimizer", "optimizer_state", "weight.exp_avg_sq")


def test_a_weight_that_goes_bad_between_batches_is_found_before_the_next(tmp_path: Path) -> None:
    net = model()
    with Recorder(net, tmp_path):
        net(torch.ones(1, 2))
        with torch.no_grad():
            net[2].weight[0, 0] = float("nan")  # type: ignore[operator]
        with pytest.raises(OverflowDetected) as caught:
            net(torch.ones(1, 2))
    trigger = caught.value.trigger
    assert (trigger.batch, trigger.module, trigger.role, trigger.key) == (1, "2", "parameter", "weight")


def test_a_weight_that_no_hook_passes_is_looked_at(tmp_path: Path) -> None:
    net = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    with Recorder(net, tmp_path):
        net(torch.randn(1, 3, 4))
        with torch.no_grad():
            net.self_attn.out_proj.weight[0, 0] = float("inf")
        with pytest.raises(OverflowDetected) as caught:
            net(torch.randn(1, 3, 4))
    assert (caught.value.trigger.module, caught.value.trigger.key) == ("self_attn.out_proj", "weight")


def test_with_the_phase_left_out_steps_are_counted_and_not_recorded(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder(net, tmp_path, phases=("forward",)) as recorder:
        step(net, optimizer)
        assert recorder.step == 1
        assert set(read(recorder.run_dir).phase) == {"forward"}


def test_a_failing_step_is_no_step(tmp_path: Path) -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise ArithmeticError("no")

    net = model()
    with Recorder(net, tmp_path) as recorder:
        with pytest.raises(ArithmeticError, match="no"):
            step(net, Fails(net.parameters(), lr=0.1))
        assert recorder.step == 0


def test_the_learning_rate_of_each_batch_is_kept(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with Recorder(net, tmp_path, optimizer=optimizer) as recorder:
        for _ in range(3):
            step(net, optimizer)
            schedule.step()
        dump = recorder.spill()
    assert [batch.learning_rate for batch in read_info(dump).batches] == [1.0, 0.5, 0.25]


def test_with_warn_a_dead_weight_is_dumped_once(tmp_path: Path) -> None:
    """What follows from it, batch after batch, is no news."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder(net, tmp_path, optimizer=optimizer, on_overflow=lambda _: None) as recorder:
        step(net, optimizer)
        optimizer.param_groups[0]["lr"] = float("inf")
        for _ in range(4):
            step(net, optimizer)
    triggers = [trigger_of(dump) for dump in recorder.dumps]
    assert [(trigger.batch, trigger.phase) for trigger in triggers] == [(1, "optimizer")]


def test_an_optimizer_that_wraps_another_takes_one_step(tmp_path: Path) -> None:
    class Wrapping(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

    model = nn.Linear(2, 1)
    optimizer = Wrapping(torch.optim.SGD(model.parameters(), lr=0.1))
    with Recorder(model, tmp_path) as recorder:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert recorder.step == 3


def test_an_empty_sparse_gradient_is_stepped(tmp_path: Path) -> None:
    model = nn.Embedding(5, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, tmp_path) as recorder:
        model(torch.zeros(0, dtype=torch.long)).sum().backward()
        optimizer.step()
        assert recorder.step == 1
