"""The demo overflows by itself, after healthy batches, and says where."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from recorder import demo


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[str]]:
    """Exit code and printed lines of one run of the demo."""
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: said.extend(" ".join(map(str, words)).splitlines()))
        return demo.main(["--log-dir", str(tmp_path_factory.mktemp("runs"))]), said


@pytest.fixture(scope="module")
def records(outcome: tuple[int, list[str]]) -> pd.DataFrame:
    return pd.read_parquet(outcome[1][-1])


def test_it_succeeds_and_its_last_line_is_the_path_of_the_dump(outcome: tuple[int, list[str]]) -> None:
    code, said = outcome
    assert code == 0
    assert Path(said[-1]).name.startswith("overflow-batch")


def test_several_healthy_batches_come_first(records: pd.DataFrame) -> None:
    bad = records.loc[records["flagged"], "batch"].min()
    assert bad >= 5
    assert not records.loc[records["batch"] < bad, "flagged"].any()


@pytest.fixture(scope="module")
def born(records: pd.DataFrame) -> pd.Series:
    """The first record that is not finite."""
    return records[records["flagged"]].sort_values("seq", kind="stable").iloc[0]


def test_the_overflow_is_born_in_the_forward_pass_of_the_last_block(born: pd.Series) -> None:
    assert born["phase"] == "forward"
    assert born["dtype"] == "float16"
    assert born["module"].startswith("blocks.7")
    assert born["has_inf"]


def test_the_residual_stream_climbs_block_by_block_into_the_limit(records: pd.DataFrame) -> None:
    bad = records.loc[records["flagged"], "batch"].min()
    blocks = [f"blocks.{number}" for number in range(demo.BLOCKS)]
    rows = records[(records["batch"] == bad) & (records["role"] == "output") & records["module"].isin(blocks)]
    climb = rows.drop_duplicates("module").set_index("module")["abs_max"].reindex(blocks[:-1]).tolist()
    assert climb == sorted(climb)
    assert climb[-1] > 5_000
    assert climb[0] < 100


def test_message_and_verdict_both_name_the_place(outcome: tuple[int, list[str]], born: pd.Series) -> None:
    text = "\n".join(outcome[1])
    assert text.count(born["module"]) >= 2
    assert "overflight" in text
