"""Under torch.compile modules are recorded from inside the compiled code: no graph break, and no other result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from recorder import DebugUnderflowOverflow, OverflowDetected, Recorder, read
from tests.recorder.watching import Watch, forward

GRADIENTS_UNSEEN = "ignore:Overflight sees no gradients:RuntimeWarning"
pytestmark = pytest.mark.filterwarnings(GRADIENTS_UNSEEN)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.GELU(), nn.Linear(8, 8)), nn.LayerNorm(8), nn.Linear(8, 1))


def compiled(net: nn.Module, backend: str = "aot_eager") -> Any:
    return torch.compile(net, backend=backend)


def breaks() -> dict[str, int]:
    return dict(torch._dynamo.utils.counters["graph_break"])


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    columns = ["batch", "module", "module_class", "role", "key", "dtype", "shape", "abs_min", "abs_max", "training"]
    found = rows.loc[rows.phase == "forward", columns].astype({"abs_min": float, "abs_max": float})
    return found.astype({name: object for name in columns if not name.startswith("abs")}).reset_index(drop=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_graph_breaks(watch: Watch, backend: str) -> None:
    """The seed breaks the graph at every module."""
    net = compiled(model(), backend)
    watch(net)
    for _ in range(2):
        net(torch.ones(3, 4)).sum().backward()
    assert breaks() == {}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert len(forward(watch.rows(), "1.0", "output")) == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_records_are_those_of_the_model_uncompiled(tmp_path: Path, backend: str) -> None:
    net = model()
    found = []
    for run_id, run in (("plain", net), ("compiled", compiled(net, backend))):
        with Recorder(run, tmp_path, run_id=run_id) as recorder:
            for batch in range(2):
                run(torch.full((3, 4), 1.0 + batch))
            found.append(numbers(read(recorder.run_dir)))
    plain, other = found
    assert len(plain) == len(other)
    pd.testing.assert_frame_equal(plain, other, check_exact=False, rtol=1e-5)


def test_losses_and_weights_are_the_same_to_the_bit(tmp_path: Path) -> None:
    def train(record: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = compiled(model())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        recorder = Recorder(net, tmp_path, optimizer=optimizer) if record else None
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(3, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if recorder is not None:
            recorder.close()
        return [*losses, *(p.detach() for p in net.parameters())]

    bare, recorded = train(record=False), train(record=True)
    assert all(torch.equal(one, other) for one, other in zip(bare, recorded, strict=True))


def test_a_model_that_ran_compiled_before_is_recorded(recording: Watch) -> None:
    net = compiled(model())
    net(torch.ones(3, 4))
    recording(net)
    net(torch.ones(3, 4))
    assert set(recording.rows().module) == {"", "0", "1", "1.0", "1.1", "2", "3"}


def test_a_module_that_compiles_itself_in_place_is_recorded(recording: Watch) -> None:
    net = model()
    net.compile(backend="aot_eager")
    recording(net)
    net(torch.ones(3, 4))
    assert set(recording.rows().module) == {"", "0", "1", "1.0", "1.1", "2", "3"}


def test_a_compiled_part_is_recorded_with_the_rest(recording: Watch) -> None:
    net = model()
    net[1] = compiled(net[1])
    recording(net)
    net(torch.ones(3, 4)).sum().backward()
    assert set(recording.rows().module) == {"", "0", "1", "1.0", "1.1", "2", "3"}


def test_an_overflow_in_compiled_code_is_raised_at_its_module(tmp_path: Path) -> None:
    class Exp(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    net = compiled(nn.Sequential(nn.Linear(4, 4), Exp(), nn.Linear(4, 1)))
    with pytest.raises(OverflowDetected) as caught, Recorder(net, tmp_path):
        net(torch.full((3, 4), 1e6))
    assert caught.value.trigger.module == "1"


def test_what_it_does_not_see_of_the_backward_is_said(tmp_path: Path) -> None:
    net = compiled(model())
    with pytest.warns(RuntimeWarning, match="sees no gradients at the inputs and outputs") as caught:
        recorder = Recorder(net, tmp_path)
    assert [warning.filename for warning in caught] == [__file__]
    net(torch.ones(3, 4)).sum().backward()
    rows = read(recorder.run_dir)
    recorder.close()
    assert set(rows[rows.phase == "backward"].role) == {"gradient"}


def test_code_compiled_while_it_was_attached_runs_after_close_and_records_nothing(tmp_path: Path) -> None:
    net = compiled(model())
    recorder = Recorder(net, tmp_path)
    expected = net(torch.ones(3, 4))
    recorder.close()
    assert torch.equal(net(torch.ones(3, 4)), expected)
    assert list(recorder.run_dir.glob("*.parquet")) == []


def test_values_of_other_shapes_are_recorded(recording: Watch) -> None:
    net = compiled(model())
    recording(net)
    for rows in (2, 3, 5):
        net(torch.ones(rows, 4))
    assert forward(recording.rows(), "0", "output")["shape"].tolist() == ["(2, 8)", "(3, 8)", "(5, 8)"]


def test_containers_and_keywords_are_opened(recording: Watch) -> None:
    class Opens(nn.Module):
        def forward(self, x: torch.Tensor, *, more: dict[str, Any]) -> dict[str, Any]:
            return {"a": x + 1, "rest": (more["b"] * 2, None)}

    net = compiled(nn.ModuleList([Opens()])[0])
    recording(net)
    net(torch.ones(1), more={"b": torch.ones(1), "flag": True})
    rows = recording.rows()
    assert {key: value for key, value in zip(rows.key, rows["dtype"], strict=True)} == {
        "0": "float32",
        "more.b": "float32",
        "more.flag": "bool",
        "a": "float32",
        "rest.0": "float32",
        "rest.1": "NoneType",
    }


def test_the_drop_in_prints_the_frames_of_compiled_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = compiled(nn.Sequential(nn.Linear(2, 2)))
    debug = DebugUnderflowOverflow(net, trace_batch_nums=[0], log_dir=tmp_path)
    net(torch.ones(1, 2))
    debug.close()
    assert "                  0 Linear" in capsys.readouterr().out
