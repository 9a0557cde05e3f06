"""What is read once is kept while its files stay the same, and only the last few."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recorder.dump import read_dump, to_frame
from recorder.errors import DumpError
from recorder.verdict import diagnose
from tests.builders import ORIGIN_MODULE, healthy_run, overflow_run
from viewer.loaded import Loaded, Shelf, is_new, loaded
from viewer.runs import open_paths
from viewer.sources import Source, sources


def source_of(path: Path) -> Source:
    return sources(open_paths([path])[0])[0]


def test_a_dump_comes_with_its_verdict_its_tree_and_its_facts(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    dump = read_dump(next(directory.glob("*.parquet")))
    one = loaded(source_of(directory))
    assert one.lines == diagnose(to_frame(dump.table), dump.info).lines
    assert [node.name for node in one.nodes if node.origin] == [ORIGIN_MODULE]
    assert one.choices.batches == (0, 2)


def test_it_is_read_once_until_its_file_changes(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    assert is_new(source_of(directory))
    first = loaded(source_of(directory))
    assert not is_new(source_of(directory))
    assert loaded(source_of(directory)) is first
    os.utime(next(directory.glob("*.parquet")), (1, 1))
    assert is_new(source_of(directory))
    assert loaded(source_of(directory)) is not first


def test_what_can_t_be_read_is_not_kept(tmp_path: Path) -> None:
    directory = healthy_run(tmp_path, batches=1)
    source = source_of(directory)
    next(directory.glob("*.parquet")).unlink()
    for _ in range(2):
        with pytest.raises(DumpError):
            loaded(source)


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    one = loaded(source_of(overflow_run(tmp_path)))
    shelf, made = Shelf(2), []

    def make(name: str) -> Loaded:
        made.append(name)
        return one

    for name in ("a", "b", "a", "c", "a", "b"):
        shelf.get(((name, 0.0, 0),), lambda name=name: make(name))  # type: ignore[misc]
    assert made == ["a", "b", "c", "b"]
