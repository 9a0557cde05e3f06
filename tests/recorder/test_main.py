"""`overflight run` records a script that was not changed, and leaves its behaviour and exit code alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from recorder.__main__ import main

TRAINS = """
import sys, torch
torch.manual_seed(0)
scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
with torch.no_grad():
    net(torch.ones(1, 4))  # a look before training begins
for batch in range(3):
    x = torch.ones(2, 4) * (scale if batch == 2 else 1.0)
    loss = criterion(net(x), torch.zeros(2, 1))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("loss", loss.item())
"""


@dataclass(frozen=True)
class Done:
    """How a script ended under `overflight run`."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a script's text in this process, as the command would in one of its own."""

    def run_script(script: str, *words: str, options: tuple[str, ...] = ()) -> Done:
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", ["", *sys.path])
        path = tmp_path / "train.py"
        path.write_text(script)
        code = main(["run", "--log-dir", str(tmp_path / "runs"), *options, str(path), *words])
        return Done(code, *capsys.readouterr())

    return run_script


def dumps(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("runs/*/*.parquet"))


def test_a_healthy_script_prints_what_it_prints_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    options = ["-m", "recorder", "run", "--log-dir", str(tmp_path / "runs")]
    alone, recorded = (
        subprocess.run([sys.executable, *before, tmp_path / "train.py"], capture_output=True, text=True, check=True)
        for before in ([], options)
    )
    assert recorded.stdout == alone.stdout
    assert "the run is in" in recorded.stderr


def test_an_overflow_ends_the_script_with_two_lines_and_a_dump(run: Run, tmp_path: Path) -> None:
    done = run(TRAINS, "inf")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    (dump,) = dumps(tmp_path)
    assert dump.name in done.stderr
    assert pd.read_parquet(dump)["flagged"].any()


def test_with_warn_the_script_goes_on(run: Run, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="inf in input"):
        done = run(TRAINS, "inf", options=("--on-overflow", "warn"))
    assert done.returncode == 0
    assert done.stdout.count("loss") == 3
    assert dumps(tmp_path)


def test_the_first_trained_batch_is_batch_0_and_traced_batches_are_dumped(run: Run, tmp_path: Path) -> None:
    run(TRAINS, options=("--trace-batches", "0:3:2"))
    assert [pd.read_parquet(dump)["batch"].unique().tolist() for dump in dumps(tmp_path)] == [[0], [2]]
    first = pd.read_parquet(dumps(tmp_path)[0])
    assert set(first["module"]) == {"", "0", "1", "2"}


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('no')", 1), ("1/0", 1)])
def test_the_exit_code_is_the_scripts(run: Run, ending: str, code: int) -> None:
    assert run(f"import sys\n{ending}").returncode == code


def test_an_exception_shows_the_scripts_own_traceback_and_leaves_a_dump(run: Run, tmp_path: Path) -> None:
    done = run(TRAINS + "\nraise KeyError('mine')")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    assert "runpy" not in done.stderr
    assert [dump.name.split("-")[0] for dump in dumps(tmp_path)] == ["exception"]


def test_the_script_is_main_and_sees_its_own_arguments_and_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'")
    done = run("import sys, beside\nprint(__name__, sys.argv[1:], beside.word)", "--log-dir", "x")
    assert done.stdout == "__main__ ['--log-dir', 'x'] beside\n"
    assert "nothing was recorded" in done.stderr


def test_a_missing_script_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err == f"overflight: {tmp_path / 'none.py'}: there is no such script\n"
