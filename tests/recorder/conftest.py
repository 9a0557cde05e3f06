"""What the recorder's tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.recorder.watching import Watch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A recorder that gives up warns of it and lets the run go on; in a test that is a failure."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("error:Overflight stopped recording:RuntimeWarning"))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(params=("Recorder", "DebugUnderflowOverflow"))
def watch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watch]:
    """Attaches the Recorder, then in a test of its own the drop-in, and closes it afterwards."""
    from tests.recorder.watching import Watch

    watch = Watch(request.param, tmp_path)
    yield watch
    watch.close()


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Watch]:
    """As `watch`, the Recorder alone."""
    from tests.recorder.watching import Watch

    watch = Watch("Recorder", tmp_path)
    yield watch
    watch.close()
