"""Module calls become frames: in order, whole, each under its batch and call."""

from __future__ import annotations

import threading
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from recorder import Recorder
from tests.recorder.watching import Watch, forward


def frames(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a frame of the forward."""
    return rows[rows.phase == "forward"].drop_duplicates("seq").reset_index(drop=True)


def test_a_frame_is_written_when_its_module_has_returned(watch: Watch) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1))
    watch(model)
    model(torch.ones(1, 2))
    found = frames(watch.rows())
    assert found.module.tolist() == ["0.0", "0.1", "0", "1", ""]
    assert found.depth.tolist() == [2, 2, 1, 1, 0]
    assert found.seq.is_monotonic_increasing


def test_a_frame_holds_parameters_buffers_inputs_and_outputs(watch: Watch) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    watch(model)
    model(torch.full((3, 2), 5.0))
    rows = watch.rows()
    norm = rows[(rows.module == "0") & (rows.phase == "forward")]
    assert list(zip(norm.role, norm.key, strict=True)) == [
        ("parameter", "weight"),
        ("parameter", "bias"),
        ("buffer", "running_mean"),
        ("buffer", "running_var"),
        ("buffer", "num_batches_tracked"),
        ("input", "0"),
        ("output", ""),
    ]
    assert norm[["dtype", "shape", "device", "numel"]].iloc[-1].tolist() == ["float32", "(3, 2)", "cpu", 6]


def test_inputs_are_what_the_module_received_even_if_it_writes_over_them(watch: Watch) -> None:
    class Clamp(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp_(-1, 1)

    model = nn.Sequential(nn.Identity(), Clamp())
    watch(model)
    model(torch.full((2,), 9.0))
    rows = watch.rows()
    assert forward(rows, "1", "input", "0").abs_max.tolist() == [9.0]
    assert forward(rows, "1", "output").abs_max.tolist() == [1.0]
    assert forward(rows, "0", "output").abs_max.tolist() == [9.0]


def test_weights_that_change_between_batches_are_looked_at_again(watch: Watch) -> None:
    linear = nn.Linear(1, 1, bias=False)
    model = nn.Sequential(linear)
    watch(model)
    for value in (2.0, 3.0):
        linear.weight.data = torch.full((1, 1), value)
        model(torch.ones(1))
    linear.weight.data.fill_(4.0)  # bumps no version
    model(torch.ones(1))
    assert forward(watch.rows(), "0", "parameter", "weight").abs_max.tolist() == [2.0, 3.0, 4.0]


def test_a_buffer_that_changes_within_a_batch_is_looked_at_again(watch: Watch) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x

    counts = Counts()
    model = nn.Sequential(counts, counts)
    watch(model)
    model(torch.ones(1))
    rows = watch.rows()
    seen = rows[(rows.role == "buffer") & (rows.key == "seen")]
    assert seen.abs_max.tolist() == [1.0, 2.0]


def test_a_root_that_calls_itself_is_one_batch(watch: Watch) -> None:
    class Tree(nn.Module):
        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            out: torch.Tensor = self(x, depth - 1) if depth else x
            return out + 1

    model = Tree()
    watch(model)
    for _ in range(2):
        model(torch.zeros(1), 2)
    outputs = forward(watch.rows(), "", "output")
    assert list(zip(outputs.batch, outputs.abs_max, strict=True)) == [
        (batch, value) for batch in (0, 1) for value in (1.0, 2.0, 3.0)
    ]


def test_a_child_that_is_called_alone_belongs_to_the_current_batch(watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    watch(model)
    model[0](torch.ones(1, 2))
    model(torch.ones(1, 2))
    model[0](torch.ones(1, 2))
    outputs = forward(watch.rows(), "0", "output")
    assert outputs.batch.tolist() == [0, 0, 0]


def test_two_threads_keep_their_calls_apart(watch: Watch) -> None:
    """Each thread runs a block of its own at the same time; no frame takes another thread's module for its parent."""
    inside = threading.Barrier(2)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.wait(30)
            return x

    shared = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(Waits(), shared), nn.Sequential(Waits(), shared))
    watch(model)
    threads = [threading.Thread(target=block, args=(torch.ones(1, 2),)) for block in model]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = watch.rows()
    assert [len(forward(rows, f"{block}.1", "output")) for block in (0, 1)] == [1, 1]
    assert watch.dumps == []


def test_include_and_exclude_choose_modules(tmp_path: Any) -> None:
    from recorder import read

    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 1))
    with Recorder(model, tmp_path, include=["0*"], exclude=["*.1"]) as recorder:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        rows = read(recorder.run_dir)
    assert set(rows.module) == {"0", "0.0"}
    assert set(rows.batch) == {0, 1}


def test_weights_of_modules_that_no_call_passes_are_seen_once_a_batch(recording: Watch) -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    model.forward = lambda x: model[0](x, x, x)[0]  # type: ignore[method-assign]
    recording(model)
    model(torch.ones(1, 1, 4))
    rows = recording.rows()
    assert len(forward(rows, "0.out_proj", "parameter", "weight")) == 1


def test_a_batch_that_is_not_traced_costs_nothing_when_sampling(tmp_path: Any) -> None:
    from recorder import read

    model = nn.Sequential(nn.Linear(2, 2))
    with Recorder(model, tmp_path, trace_batches=range(0, 100, 2), on_overflow="ignore") as recorder:
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
    assert [path.name.split("-")[1] for path in recorder.dumps] == ["batch000000", "batch000002"]
    assert set(read(recorder.run_dir).batch) == {0, 2}


class OneOnTheCpu(nn.Module):
    """A buffer whose numbers wait, as on a device, and from then on tensors that are read at once, as on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
        self.inner = nn.Identity()
        self.recorder: Recorder | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.recorder is not None
        self.recorder._meter._defer = False
        y: torch.Tensor = self.inner(x * float("nan"))
        return y


def test_a_bad_tensor_is_judged_beside_numbers_that_still_wait_on_a_device(tmp_path: Any) -> None:
    model = OneOnTheCpu()
    with Recorder(model, tmp_path, check="batch", phases=("forward",), on_overflow="warn") as recorder:
        model.recorder = recorder
        with pytest.warns(RuntimeWarning, match="nan in input 0 of inner"):
            model(torch.ones(2))
    assert len(recorder.dumps) == 1


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("not a numeric fault")


@pytest.mark.parametrize("check", ["frame", "batch"])
def test_the_frames_that_an_exception_leaves_open_are_in_its_dump_with_their_weights(check: str, tmp_path: Any) -> None:
    from recorder import read

    model = nn.Sequential(nn.Linear(2, 2), Failing())
    model.register_buffer("scale", torch.ones(2))
    with (
        pytest.raises(KeyError),
        Recorder(model, tmp_path, check=check, phases=("forward",)) as recorder,
    ):
        model(torch.ones(1, 2))
    rows = read(recorder.dumps[0])
    assert {("", "buffer", "scale"), ("", "input", "0"), ("1", "input", "0")} <= set(
        zip(rows.module, rows.role, rows.key, strict=True)
    )
