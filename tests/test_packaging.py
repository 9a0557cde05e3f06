"""What installing the package brings along, and that the pins say what they should."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML reader")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split(";")[0].strip().split("==") for line in lines if not line.startswith("#"))


def test_installing_the_package_replaces_nobodys_torch_and_brings_no_dashboard(project: dict[str, Any]) -> None:
    assert names(project["dependencies"]) == {"numpy", "pandas", "pyarrow"}


def test_the_viewer_extra_brings_no_torch(project: dict[str, Any]) -> None:
    assert "torch" not in names(project["optional-dependencies"]["view"])


def test_everything_named_is_pinned(project: dict[str, Any]) -> None:
    named = names(project["dependencies"]).union(*map(names, project["optional-dependencies"].values()))
    assert named - set(pins()) == {"overflight"}


def test_pins_name_releases_not_builds_or_places() -> None:
    assert [pin for pin, version in pins().items() if not re.fullmatch(r"[\w.]+", version)] == []


def test_the_command_is_the_viewers(project: dict[str, Any]) -> None:
    assert project["scripts"] == {"overflight": "viewer.cli:main"}


def test_both_packages_are_typed() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in ("recorder", "viewer"))
