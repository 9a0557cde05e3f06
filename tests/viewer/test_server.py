"""The server's warm-up: what the first page needs is there before the server answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from viewer.server import warm_up
warm_up()
needed = {"pandas", "plotly.graph_objects", "viewer.charts", "recorder.verdict"}
print(sorted(needed - set(sys.modules)), "streamlit" in sys.modules, "torch" in sys.modules)
"""


def test_warming_up_imports_what_the_app_needs_and_neither_torch_nor_the_server_itself() -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[] False False"
