"""The server's warm-up: what the first page needs is there before the server answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.builders import healthy_run, overflow_run

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from viewer.server import warm_up
warm_up(sys.argv[1:])
from viewer.loaded import _shelf
print(len(_shelf._kept), "plotly.graph_objects" in sys.modules, "streamlit" in sys.modules, "torch" in sys.modules)
"""


def warmed(*paths: Path) -> list[str]:
    """Sources kept; whether plotly, Streamlit and torch were imported."""
    command = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_the_one_run_is_read_and_plotly_imported_and_neither_torch_nor_the_server_itself(tmp_path: Path) -> None:
    assert warmed(overflow_run(tmp_path)) == ["1", "True", "False", "False"]


def test_of_several_runs_none_is_read_before_a_reader_chooses(tmp_path: Path) -> None:
    overflow_run(tmp_path)
    healthy_run(tmp_path)
    assert warmed(tmp_path) == ["0", "True", "False", "False"]
