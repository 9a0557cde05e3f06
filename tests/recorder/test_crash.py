"""However a process ends, what it recorded is on the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from torch import nn

from recorder import Recorder, read
from recorder.dump import read_info
from tests.recorder.watching import trigger_of
from viewer.cli import main

REPOSITORY = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

PREPARE = """
import sys, time, torch
from torch import nn
from recorder import Recorder

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())

def train(batches):
    for batch in range(batches):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        print(batch, flush=True)
"""

TRAIN_ON = "recorder = Recorder(model, sys.argv[1], optimizer=optimizer)\ntrain(10**9)\n"


@contextmanager
def child(script: str, log_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs PREPARE and then the script, with the directory of its runs as argument."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE + script, str(log_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(script: str, log_dir: Path) -> tuple[int, str]:
    """Exit code and standard error."""
    with child(script, log_dir) as process:
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def wait_for_batch(process: subprocess.Popen[str], batch: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == str(batch):
            return
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


def the_dump(log_dir: Path) -> Path:
    [dump] = log_dir.glob("*/*.parquet")
    return dump


def places(rows: pd.DataFrame, batch: int) -> list[tuple[str, ...]]:
    columns = ["phase", "module", "role", "key"]
    return sorted(rows.loc[rows.batch == batch, columns].itertuples(index=False, name=None))


@posix
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV], ids=lambda death: death.name)
def test_a_killed_process_leaves_every_acknowledged_record(tmp_path: Path, death: signal.Signals) -> None:
    acknowledged = 20
    with child(TRAIN_ON, tmp_path) as process:
        wait_for_batch(process, acknowledged)
        process.send_signal(death)
        process.wait(60)
    assert list(tmp_path.glob("*/*.parquet")) == []
    assert main(["recover", str(tmp_path)]) == 0
    dump = the_dump(tmp_path)
    assert trigger_of(dump).kind == "recovered"
    rows = read(dump)
    whole = places(rows, 0)
    assert len({phase for phase, *_ in whole}) == 3
    for batch in range(1, acknowledged + 1):
        assert places(rows, batch) == whole, f"batch {batch}"
    assert rows.seq.is_monotonic_increasing
    assert list(tmp_path.glob("*/*.ring")) == []


@posix
def test_a_terminated_process_dumps_and_dies_of_the_signal(tmp_path: Path) -> None:
    with child(TRAIN_ON, tmp_path) as process:
        wait_for_batch(process, 3)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert errors == ""
    dump = the_dump(tmp_path)
    assert (trigger_of(dump).kind, dump.name.split("-")[0]) == ("signal", "signal")
    assert set(read(dump).batch) >= {0, 1, 2, 3}


@posix
def test_a_terminated_process_dumps_what_still_waited_to_be_read(tmp_path: Path) -> None:
    """As on an accelerator, where numbers are read once a batch."""
    script = (
        "import signal\nrecorder = Recorder(model, sys.argv[1], optimizer=optimizer, check='batch')\n"
        "train(1)\nsignal.pause()\n"
    )
    with child(script, tmp_path) as process:
        wait_for_batch(process, 0)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert set(read(the_dump(tmp_path)).phase) == {"forward", "backward", "optimizer"}


@posix
def test_a_handler_of_the_users_is_left_alone(tmp_path: Path) -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + TRAIN_ON
    with child(script, tmp_path) as process:
        wait_for_batch(process, 3)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 7


@posix
def test_the_default_handler_is_back_after_close(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    recorder = Recorder(nn.Linear(1, 1), tmp_path)
    assert signal.getsignal(signal.SIGTERM) is not before
    recorder.close()
    assert signal.getsignal(signal.SIGTERM) is before


@posix
def test_a_recorder_in_a_thread_leaves_signals_alone(tmp_path: Path) -> None:
    def record() -> None:
        with Recorder(nn.Linear(1, 1), tmp_path):
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list[object] = []
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("context_manager", [True, False], ids=["in a with block", "without one"])
def test_an_exception_dumps_and_is_raised_as_before(tmp_path: Path, context_manager: bool) -> None:
    if context_manager:
        script = "with Recorder(model, sys.argv[1], optimizer=optimizer):\n    train(2)\n    raise KeyError('mine')\n"
    else:
        script = "recorder = Recorder(model, sys.argv[1], optimizer=optimizer)\ntrain(2)\nraise KeyError('mine')\n"
    code, errors = run(script, tmp_path)
    assert code == 1
    assert errors.startswith("Traceback")
    assert errors.endswith("KeyError: 'mine'\n")
    assert errors.count("Traceback") == 1
    dump = the_dump(tmp_path)
    assert (trigger_of(dump).kind, trigger_of(dump).batch) == ("exception", 1)
    assert set(read(dump).batch) == {0, 1}


def test_an_excepthook_of_the_users_is_still_called(tmp_path: Path) -> None:
    script = (
        "sys.excepthook = lambda kind, error, trace: print('mine:', error, file=sys.stderr)\n"
        "recorder = Recorder(model, sys.argv[1])\ntrain(1)\nraise ValueError('wrong')\n"
    )
    assert run(script, tmp_path) == (1, "mine: wrong\n")
    assert trigger_of(the_dump(tmp_path)).kind == "exception"


def test_an_overflow_that_nobody_catches_is_dumped_once(tmp_path: Path) -> None:
    script = (
        "recorder = Recorder(model, sys.argv[1], optimizer=optimizer)\ntrain(2)\n"
        "model[0].bias.data[0] = float('inf')\ntrain(1)\n"
    )
    code, errors = run(script, tmp_path)
    assert code == 1
    assert "OverflowDetected" in errors
    assert trigger_of(the_dump(tmp_path)).kind == "overflow"


@pytest.mark.parametrize("ending", ["", "sys.exit(0)"], ids=["end of script", "sys.exit"])
def test_a_normal_end_leaves_nothing_to_recover(tmp_path: Path, ending: str) -> None:
    code, errors = run(f"recorder = Recorder(model, sys.argv[1], optimizer=optimizer)\ntrain(2)\n{ending}\n", tmp_path)
    assert (code, errors) == (0, "")
    assert [path.name for path in tmp_path.glob("*/*")] == ["_run.json"]


def test_a_traced_batch_that_is_under_way_when_the_script_ends_is_dumped(tmp_path: Path) -> None:
    code, errors = run("recorder = Recorder(model, sys.argv[1], trace_batches=(1,))\ntrain(2)\n", tmp_path)
    assert (code, errors) == (0, "")
    dump = the_dump(tmp_path)
    assert trigger_of(dump).kind == "traced_batch"
    assert set(read(dump).batch) == {1}
    assert read_info(dump).settings["trace_batches"] == [1]
