"""Loss scaling: gradients of a step that the scaler skips are normal; skips that do not end are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recorder import OverflowDetected, Recorder, read
from recorder.dump import read_info

STEP_OUT = 2.0**14
"""With this factor in the backward a gradient of 1 fits fp16 at a scale of up to 2."""


class Half(nn.Module):
    """A weight of fp32 used in fp16; its gradient is `factor` times the scale, which must fit fp16."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).half() * 1.0


def train(net: Half, scaler: Any, optimizer: torch.optim.Optimizer, batches: int, factor: float | None = None) -> None:
    for _ in range(batches):
        optimizer.zero_grad()
        loss = net(torch.ones(1)).sum() * torch.tensor(net.factor if factor is None else factor).half()
        scaler.scale(loss.float()).backward()
        scaler.step(optimizer)
        scaler.update()


def parts(init_scale: float) -> tuple[Half, Any, torch.optim.Optimizer]:
    net = Half(STEP_OUT)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=1000)
    return net, scaler, torch.optim.SGD(net.parameters(), lr=1e-6)


@pytest.mark.parametrize("handed_over", [True, False], ids=["handed over", "found"])
def test_a_scaler_that_finds_its_scale_is_healthy(tmp_path: Path, handed_over: bool) -> None:
    net, scaler, optimizer = parts(init_scale=64.0)
    with Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler if handed_over else None) as recorder:
        train(net, scaler, optimizer, 9)
        rows = read(recorder.run_dir)
        dump = recorder.spill()
    assert scaler.get_scale() >= 1.0
    bad = rows[rows.flagged]
    assert len(bad), "there were overflows"
    assert bad.expected.all()
    info = read_info(dump)
    assert {one.rule for one in info.suppressed} == {"scaled gradient"}
    skipped = [batch.skipped for batch in info.batches]
    assert True in skipped
    assert skipped[-1] is False
    assert recorder.step == skipped.count(False)


def test_the_scale_of_each_batch_is_in_the_dump(tmp_path: Path) -> None:
    net, scaler, optimizer = parts(init_scale=64.0)
    with Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler) as recorder:
        scales = []
        for _ in range(6):
            scales.append(scaler.get_scale())
            train(net, scaler, optimizer, 1)
        dump = recorder.spill()
    kept = [batch.loss_scale for batch in read_info(dump).batches]
    assert kept[-1] == scales[-1]
    assert None not in kept


def test_skips_that_do_not_end_trip_and_name_the_first_bad_gradient(tmp_path: Path) -> None:
    net, scaler, optimizer = parts(init_scale=8.0)
    with pytest.raises(OverflowDetected) as caught, Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler):
        train(net, scaler, optimizer, 60, factor=float("inf"))
    trigger = caught.value.trigger
    assert trigger.phase == "backward"
    assert scaler.get_scale() < 1.0
    info = read_info(caught.value.dump or "")
    assert [batch.skipped for batch in info.batches][:-1].count(False) == 0
    assert all(batch.skipped for batch in info.batches[:-1])


def test_a_bad_gradient_that_is_stepped_all_the_same_trips_at_the_step(tmp_path: Path) -> None:
    """The scaler scaled the loss, and the step was taken without it."""
    net, scaler, optimizer = parts(init_scale=64.0)
    with Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler):
        loss = net(torch.ones(1)).sum() * torch.tensor(STEP_OUT).half()
        scaler.scale(loss.float()).backward()
        with pytest.raises(OverflowDetected) as caught:
            optimizer.step()
    assert (caught.value.trigger.batch, caught.value.trigger.phase) == (0, "backward")


def test_a_disabled_scaler_guards_nothing(tmp_path: Path) -> None:
    net, _, optimizer = parts(init_scale=1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(OverflowDetected) as caught, Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler):
        train(net, scaler, optimizer, 1, factor=float("inf"))
    assert caught.value.trigger.phase == "backward"


def test_a_forward_that_overflows_trips_though_there_is_a_scaler(tmp_path: Path) -> None:
    net, scaler, optimizer = parts(init_scale=2.0)
    with pytest.raises(OverflowDetected) as caught, Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler):
        net(torch.full((1,), 1e6))
    assert (caught.value.trigger.phase, caught.value.trigger.role) == ("forward", "output")


def test_accumulation_over_batches_is_no_skip(tmp_path: Path) -> None:
    net, scaler, optimizer = parts(init_scale=1.0)
    with Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler) as recorder:
        for _ in range(3):
            for _ in range(2):
                loss = net(torch.ones(1)).sum() * torch.tensor(STEP_OUT).half()
                scaler.scale(loss.float()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        dump = recorder.spill()
    assert recorder.step == 3
    assert [batch.skipped for batch in read_info(dump).batches] == [None, False] * 3


def test_the_recorder_holds_on_to_no_scaler_after_close(tmp_path: Path) -> None:
    import gc
    import weakref

    net, scaler, optimizer = parts(init_scale=1.0)
    recorder = Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler)
    train(net, scaler, optimizer, 1)
    recorder.close()
    reference = weakref.ref(scaler)
    del scaler
    gc.collect()
    assert reference() is None


class TwoHeads(nn.Module):
    """Only the gradient of `steep` overflows fp16 under a large scale, as a generator's beside its discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.steep = Half(STEP_OUT)
        self.flat = Half(1.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steep = self.steep(x).sum() * torch.tensor(self.steep.factor).half()
        return steep, self.flat(x).sum()


@pytest.mark.parametrize("handed_over", [True, False], ids=["handed over", "found"])
def test_one_scaler_of_two_optimizers_skips_the_step_of_one_and_takes_that_of_the_other(
    tmp_path: Path, handed_over: bool
) -> None:
    net = TwoHeads()
    optimizers = [torch.optim.SGD(half.parameters(), lr=1e-6) for half in (net.steep, net.flat)]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1000)
    with Recorder(net, tmp_path, optimizer=optimizers, scaler=scaler if handed_over else None) as recorder:
        for _ in range(9):
            net.zero_grad()
            for loss in net(torch.ones(1)):
                scaler.scale(loss.float()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        assert recorder.dumps == []
        assert 9 < recorder.step < 18


def test_a_bad_gradient_that_was_mended_before_the_step_trips_nothing(tmp_path: Path) -> None:
    net, scaler, optimizer = parts(init_scale=64.0)
    with Recorder(net, tmp_path, optimizer=optimizer, scaler=scaler) as recorder:
        scaler.scale(net(torch.ones(1)).sum() * torch.tensor(net.factor).half()).backward()
        assert net.weight.grad is not None
        assert net.weight.grad.isinf().all()
        net.weight.grad.zero_()
        optimizer.step()
        assert recorder.dumps == []


def test_a_scaler_of_an_earlier_run_guards_nothing(tmp_path: Path) -> None:
    earlier = torch.amp.GradScaler("cpu", init_scale=64.0)
    earlier.scale(torch.ones(1))
    net, _, optimizer = parts(init_scale=64.0)
    with Recorder(net, tmp_path, optimizer=optimizer) as recorder:
        loss = net(torch.ones(1)).sum() * torch.tensor(net.factor).half()
        (loss * 64.0).float().backward()
        net.weight.grad = torch.zeros(1)  # the step does no harm, but no scaler has said so
        with pytest.raises(OverflowDetected) as caught:
            optimizer.step()
    assert earlier.get_scale() == 64.0
    assert (caught.value.trigger.batch, caught.value.trigger.phase) == (0, "backward")
    assert recorder.step == 0
