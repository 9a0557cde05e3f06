"""On an accelerator a host read waits for all that was queued: how often the recorder's hooks ask for one.

A mode counts what asks a tensor for its value, so it holds on the CPU too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from recorder import Recorder

ASKS = frozenset({"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__format__", "__index__"})
FORWARD = ("forward",)


class HostReads(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ASKS and args and isinstance(args[0], torch.Tensor):
            self.asked.append(name)
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


def reads_of_one_batch(layers: int, check: str, log_dir: Path) -> list[str]:
    net = Net(layers)
    with Recorder(net, log_dir, check=check, phases=FORWARD), torch.no_grad():
        net(torch.ones(2, 4))
        reads = HostReads()
        with reads:
            net(torch.ones(2, 4))
    return reads.asked


def test_the_mode_sees_what_immediate_statistics_ask_for(tmp_path: Path) -> None:
    assert len(reads_of_one_batch(3, "frame", tmp_path)) > 3 * 2


@pytest.mark.parametrize("layers", [1, 8])
def test_batch_mode_fetches_all_numbers_at_once_however_many_modules_there_are(layers: int, tmp_path: Path) -> None:
    assert reads_of_one_batch(layers, "batch", tmp_path) == ["cpu", "tolist"]


def test_no_hook_inside_a_batch_asks_for_a_value_in_batch_mode(tmp_path: Path) -> None:
    net = Net(4)
    seen: list[str] = []
    reads = HostReads()
    net.layers[3].register_forward_hook(lambda *_: seen.extend(reads.asked))
    with Recorder(net, tmp_path, check="batch", phases=FORWARD), torch.no_grad():
        net(torch.ones(2, 4))
        with reads:
            net(torch.ones(2, 4))
    assert seen == []
    assert reads.asked != []


def test_numbers_read_late_are_those_of_the_moment(tmp_path: Path) -> None:
    class Clip(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp_(-1, 1)

    net = nn.Sequential(nn.Identity(), Clip())
    with Recorder(net, tmp_path, check="batch", phases=FORWARD) as recorder, torch.no_grad():
        net(torch.full((2,), 5.0))
        dump = recorder.spill()
    from recorder import read

    records = read(dump).query("module == '0' and role == 'output'")
    assert records["abs_max"].tolist() == [5.0]
