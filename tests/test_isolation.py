"""A teammate without torch opens a dump; a cluster without the viewer's libraries records. Shown in child processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
"""
VIEWER_LIBRARIES = {"streamlit", "plotly", "duckdb"}

RECORDS = """
import torch
from recorder import OverflowDetected, Recorder
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
try:
    with Recorder(model, sys.argv[1], trace_batches=[0]) as recorder:
        model(torch.ones(1, 2))
        model(torch.full((1, 2), torch.inf))
except OverflowDetected as overflow:
    print(overflow.dump)
"""


def python(code: str, *arguments: str, without: set[str]) -> subprocess.CompletedProcess[str]:
    """Run code in a child process that can't import these top-level packages."""
    command = [sys.executable, "-c", BLOCKED.format(names=sorted(without)) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run that was recorded with none of the viewer's libraries there."""
    return python(RECORDS, str(tmp_path_factory.mktemp("runs")), without=VIEWER_LIBRARIES)


@pytest.fixture(scope="module")
def dump(recorded: subprocess.CompletedProcess[str]) -> Path:
    return Path(recorded.stdout.strip())


def test_the_recorder_records_without_the_viewers_libraries(
    recorded: subprocess.CompletedProcess[str], dump: Path
) -> None:
    assert recorded.stderr == ""
    assert {path.name.split("-")[0] for path in dump.parent.glob("*.parquet")} == {"trace", "overflow"}


@pytest.mark.parametrize("form", ["text", "hf", "json"])
def test_every_report_is_made_without_torch(dump: Path, form: str) -> None:
    done = python(
        "from viewer.cli import main; sys.exit(main(sys.argv[1:]))",
        "report",
        "--format",
        form,
        str(dump),
        without={"torch"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "inf" in done.stdout


def test_no_report_loads_the_dashboard(dump: Path) -> None:
    code = "from viewer.cli import main; sys.exit(main(sys.argv[1:]))"
    done = python(code, "report", str(dump), without={"torch", *VIEWER_LIBRARIES})
    assert (done.returncode, done.stderr) == (0, "")


def viewer_modules() -> list[str]:
    folder = Path(__file__).parent.parent / "viewer"
    paths = [path.relative_to(folder.parent).with_suffix("") for path in sorted(folder.rglob("*.py"))]
    return [".".join(path.parts) for path in paths if path.name != "__init__" and "pages" not in path.parts]


def test_every_module_of_the_viewer_imports_without_torch() -> None:
    code = f"import importlib\nfor name in {viewer_modules()}: importlib.import_module(name)"
    done = python(code, without={"torch"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Recorder", "DebugUnderflowOverflow", "detect_overflow"])
def test_a_missing_torch_is_one_clear_sentence(name: str) -> None:
    done = python(f"import recorder\nrecorder.{name}", without={"torch"})
    said = f"recorder.{name} needs PyTorch: install the torch build that fits your machine, then try again."
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {said}"
    assert "During handling" not in done.stderr


def test_a_dump_is_read_without_torch(dump: Path) -> None:
    done = python("import recorder\nprint(recorder.read(sys.argv[1])['flagged'].any())", str(dump), without={"torch"})
    assert done.stdout == "True\n", done.stderr


def test_the_demo_without_torch_is_one_clear_sentence() -> None:
    done = python("from viewer.cli import main; sys.exit(main(['demo', '--no-view']))", without={"torch"})
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "PyTorch" in done.stderr
