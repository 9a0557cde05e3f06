"""All ranks of a run write into one directory."""

from __future__ import annotations

from pathlib import Path

from torch._C._distributed_c10d import FileStore

from recorder.run_directory import first_to_name


def test_ranks_take_the_id_of_the_first_to_ask_for_it(tmp_path: Path) -> None:
    stores = [FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    one, other = (first_to_name(store, 0) for store in stores)
    assert one == other
    assert first_to_name(stores[0], 1) != one
