"""The dumps of `sample_logs/` read, are small, and say what their README says of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from recorder import read
from viewer.report import Report, build_report
from viewer.runs import open_paths

SAMPLES = Path(__file__).parents[1] / "sample_logs"
OVERFLOWED = {
    "mt5-fp16-overflow": ("decoder.block.0.layer.2.DenseReluDense.wo", "output", "", "forward", 14),
    "minilm-fp16-adamw": ("minilm.embeddings.word_embeddings", "parameter", "weight", "optimizer", 0),
}
HEALTHY = "minilm-healthy"
MAX_BYTES, MAX_DUMP_BYTES = 5_000_000, 1_500_000


def report_of(name: str) -> Report:
    (run,) = open_paths([SAMPLES / name])
    return build_report(run)


def unexpected(records: pd.DataFrame) -> pd.DataFrame:
    return records[records["flagged"] & ~records["expected"]]


@pytest.mark.parametrize("name", [*OVERFLOWED, HEALTHY])
def test_a_sample_is_a_run_directory_as_a_closed_recorder_leaves_it(name: str) -> None:
    (run,) = open_paths([SAMPLES / name])
    assert run.problems == ()
    assert run.rings == ()
    assert run.info is not None
    assert {path.name for path in (SAMPLES / name).iterdir()} == {*(dump.path.name for dump in run.dumps), "_run.json"}


@pytest.mark.parametrize("name", OVERFLOWED)
def test_trigger_and_origin_name_the_place_where_it_died(name: str) -> None:
    report = report_of(name)
    trigger, origin = report.trigger, report.origin
    assert report.overflowed
    assert trigger is not None
    assert origin is not None
    assert trigger.kind == "overflow"
    assert (trigger.module, trigger.role, trigger.key, trigger.phase, trigger.batch) == OVERFLOWED[name]
    assert tuple(origin[name] for name in ("module", "role", "key", "phase", "batch")) == OVERFLOWED[name]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("mt5-fp16-overflow", "the values outgrew float16"), ("minilm-fp16-adamw", "Adam's eps of 1e-8 is 0 in float16")],
)
def test_the_verdict_says_why(name: str, cause: str) -> None:
    assert f"Very likely: {cause}" in "\n".join(report_of(name).lines)


def test_the_overflow_was_not_forced_its_value_had_grown_over_the_batches() -> None:
    records = read(SAMPLES / "mt5-fp16-overflow")
    module, role, _, phase, batch = OVERFLOWED["mt5-fp16-overflow"]
    at_origin = (records["module"] == module) & (records["role"] == role) & (records["phase"] == phase)
    peaks = records[at_origin].set_index("batch")["abs_max"]
    climb = peaks.loc[batch - 10 : batch - 1].tolist()
    assert climb == sorted(climb)
    assert climb[0] < 100
    assert climb[-1] > 60_000
    assert set(unexpected(records)["batch"]) == {batch}


def test_gradients_that_the_scaler_answered_for_are_recorded_as_expected() -> None:
    records = read(SAMPLES / "mt5-fp16-overflow")
    scaled = records[records["flagged"] & records["expected"]]
    assert not scaled.empty
    assert set(scaled["phase"]) == {"backward"}


def test_fp16_adamw_kills_nearly_all_weights_in_its_first_step() -> None:
    records = read(SAMPLES / "minilm-fp16-adamw")
    parameters = records[(records["phase"] == "optimizer") & (records["role"] == "parameter")]
    assert parameters["flagged"].mean() > 0.9
    assert not records.loc[records["phase"] != "optimizer", "flagged"].any()


def test_the_healthy_run_has_all_phases_of_twenty_batches_and_nothing_wrong() -> None:
    report = report_of(HEALTHY)
    kinds = {dump.info.trigger.kind for dump in report.run.dumps if dump.info.trigger}
    records = read(SAMPLES / HEALTHY)
    assert kinds == {"traced_batch"}
    assert sorted(records["batch"].unique()) == list(range(20))
    assert set(records["phase"]) == {"forward", "backward", "optimizer"}
    assert unexpected(records).empty
    assert report.origin is None
    assert report.warnings == ()
    assert not report.overflowed


@pytest.mark.parametrize("name", [*OVERFLOWED, HEALTHY])
def test_the_readme_tells_each_verdict_as_the_report_does(name: str) -> None:
    assert report_of(name).lines[0] in (SAMPLES / "README.md").read_text(encoding="utf-8")


def test_the_samples_are_small_enough_to_commit() -> None:
    sizes = [path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()]
    assert sum(sizes) < MAX_BYTES
    assert max(sizes) < MAX_DUMP_BYTES
