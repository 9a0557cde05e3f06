"""The drop-in: the names, arguments, printed report and errors of the class that it stands in for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from recorder import DebugOption, DebugUnderflowOverflow, detect_overflow, get_abs_min_max, read
from tests.recorder.watching import Bomb, trigger_of

INF, NAN = float("inf"), float("nan")
Printed = pytest.CaptureFixture[str]


def model(*bad_calls: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), Bomb(calls=bad_calls))


def test_its_arguments_are_those_of_the_original() -> None:
    debug_utils = pytest.importorskip("transformers.debug_utils")
    theirs = list(inspect.signature(debug_utils.DebugUnderflowOverflow).parameters.values())
    ours = list(inspect.signature(DebugUnderflowOverflow).parameters.values())
    assert [(one.name, one.default) for one in ours[: len(theirs)]] == [(one.name, one.default) for one in theirs]
    assert {option.name: option.value for option in DebugOption} == {
        option.name: option.value for option in debug_utils.DebugOption
    }


def test_an_overflow_is_printed_with_the_frames_before_it_and_raised(tmp_path: Path, capsys: Printed) -> None:
    net = model(1)
    debug = DebugUnderflowOverflow(net, max_frames_to_save=3, log_dir=tmp_path)
    net(torch.ones(1, 2))
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="inf/nan detected, aborting") as caught:
        net(torch.ones(1, 2))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "output has infs",
        "",
        "Detected inf/nan during batch_number=1",
        "Last 3 forward frames:",
        "abs min  abs max  metadata",
    ]
    assert [line.strip() for line in lines if line.startswith(" " * 18)] == [
        "Sequential",
        "*** Starting batch number=1 ***",
        "0 Linear",
        "1 Bomb",
    ]
    assert lines[-4].endswith(" output")
    [dump] = debug.dumps
    assert str(dump) in str(caught.value)
    assert (trigger_of(dump).kind, trigger_of(dump).module) == ("overflow", "1")
    debug.close()


def test_chosen_batches_are_printed_whole_and_dumped(tmp_path: Path, capsys: Printed) -> None:
    net = model()
    with DebugUnderflowOverflow(net, trace_batch_nums=[1, 3], log_dir=tmp_path) as debug:
        printed = []
        for _ in range(5):
            net(torch.ones(1, 2))
            printed.append(capsys.readouterr().out)
    assert [bool(text) for text in printed] == [False, True, False, True, False]
    assert "*** Starting batch number=1 ***" in printed[1]
    assert [line.split()[-1] for line in printed[1].splitlines() if line.startswith(" " * 18)][1:] == [
        "Linear",
        "Bomb",
        "Sequential",
    ]
    assert [trigger_of(dump).batch for dump in debug.dumps] == [1, 3]


def test_detection_is_off_in_a_traced_batch(tmp_path: Path, capsys: Printed) -> None:
    net = model(1, 2)
    with DebugUnderflowOverflow(net, trace_batch_nums=[1], log_dir=tmp_path):
        net(torch.ones(1, 2))
        net(torch.ones(1, 2))
        assert "inf output" in capsys.readouterr().out
        with pytest.raises(ValueError, match="inf/nan detected"):
            net(torch.ones(1, 2))


def test_it_stops_after_the_batch_that_it_is_told(tmp_path: Path) -> None:
    net = model()
    with DebugUnderflowOverflow(net, abort_after_batch_num=1, log_dir=tmp_path):
        net(torch.ones(1, 2))
        with pytest.raises(ValueError, match=r"aborting after 2 batches due to `abort_after_batch_num=1` arg"):
            net(torch.ones(1, 2))


def test_the_batch_number_is_that_of_the_current_batch(tmp_path: Path) -> None:
    net = model()
    with DebugUnderflowOverflow(net, log_dir=tmp_path) as debug:
        for _ in range(3):
            net(torch.ones(1, 2))
        assert debug.batch_number == 2


def test_dumps_go_to_runs_where_nothing_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DebugUnderflowOverflow(model()).close()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_what_the_original_cannot_see_is_a_further_line(tmp_path: Path, capsys: Printed) -> None:
    class Nested(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scaled": x * scale}

    net = nn.ModuleList([Nested()])[0]
    net.register_buffer("bias", torch.full((1,), 0.5))
    with DebugUnderflowOverflow(net, trace_batch_nums=[0], log_dir=tmp_path):
        net(torch.ones(1), scale=torch.full((1,), 4.0))
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "5.00e-01 5.00e-01 bias",
        "1.00e+00 1.00e+00 input[0]",
        "4.00e+00 4.00e+00 input[scale]",
        "     not a tensor output",
        "4.00e+00 4.00e+00 output.scaled",
    ]


def test_only_the_forward_is_recorded(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters())
    with DebugUnderflowOverflow(net, log_dir=tmp_path) as debug:
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert set(read(debug.run_dir).phase) == {"forward"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, 2.0], ""),
        ([1.0, NAN], "here has nans\n"),
        ([-INF, 1.0], "here has infs\n"),
        ([NAN, INF], "here has nans\nhere has infs\n"),
        ([], ""),
    ],
    ids=repr,
)
def test_detect_overflow_says_what_it_finds(values: list[float], said: str, capsys: Printed) -> None:
    assert detect_overflow(torch.tensor(values), "here") is bool(said)
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: torch.tensor([-3.0, 0.25]), "2.50e-01 3.00e+00 w"),
        (lambda: torch.tensor([1.0, NAN]), "     nan      nan w"),
        (lambda: torch.tensor([1.0, -INF]), "1.00e+00      inf w"),
        (lambda: torch.tensor([INF]), "     inf      inf w"),
        (lambda: torch.tensor([-128], dtype=torch.int8), "1.28e+02 1.28e+02 w"),
        (lambda: torch.tensor([True, False]), "0.00e+00 1.00e+00 w"),
        (lambda: torch.empty(0), "            empty w"),
        (lambda: torch.empty(3, device="meta"), "     not measured w"),
    ],
    ids=["finite", "nan", "-inf", "all inf", "int8", "bool", "empty", "meta"],
)
def test_get_abs_min_max_is_one_line(make: Callable[[], torch.Tensor], line: str) -> None:
    assert get_abs_min_max(make(), "w") == line


def test_the_functions_agree_with_the_originals(capsys: Printed) -> None:
    debug_utils = pytest.importorskip("transformers.debug_utils")
    for values in ([1.0, -2.5], [0.0, NAN], [INF, -3.0], [NAN, -INF]):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            tensor = torch.tensor(values, dtype=dtype, requires_grad=True)
            assert get_abs_min_max(tensor, "x") == debug_utils.get_abs_min_max(tensor, "x")
            assert detect_overflow(tensor, "x") == debug_utils.detect_overflow(tensor, "x")
            lines = capsys.readouterr().out.splitlines()
            assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
