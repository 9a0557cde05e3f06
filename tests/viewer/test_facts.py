"""Facts: short, from the dump alone, and there even when the dump says little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recorder.dump import read_dump
from recorder.schema import DUMP_SCHEMA, RunInfo
from tests.builders import ORIGIN_MODULE, headroom_warning, overflow_run, run_info
from viewer.columns import Records
from viewer.facts import all_facts, key_facts, started_text
from viewer.tree import tree


def test_the_key_facts_of_an_overflow(tmp_path: Path) -> None:
    dump = read_dump(next(overflow_run(tmp_path, warnings=(headroom_warning(),)).glob("*.parquet")))
    records = Records(dump.table)
    facts = {fact.label: fact for fact in key_facts(records, dump.info, tree(records, dump.info))}
    assert (facts["Trigger"].value, facts["Trigger"].detail) == ("overflow", f"output of {ORIGIN_MODULE}")
    assert facts["Records"].value == f"{len(records):,}"
    assert facts["Records"].detail == "batches 0 to 2, 1,200 evicted before"
    assert (facts["Least headroom"].value, facts["Least headroom"].detail) == ("0.0 binades", ORIGIN_MODULE)
    assert (facts["Warnings"].value, facts["Warnings"].detail) == ("1", "headroom, 3 expected non-finite")
    assert facts["Recorder's cost"].value == "3.0%"


def test_a_dump_that_says_nothing_has_facts_too() -> None:
    records, info = Records(DUMP_SCHEMA.empty_table()), RunInfo("bare")
    values = [fact.value for fact in key_facts(records, info, tree(records, info))]
    assert values == ["none", "0", "-", "0", "-"]
    assert any(fact.value == "bare" for fact in all_facts(records, info))


def test_versions_and_settings_are_among_all_facts() -> None:
    said = {fact.label: fact.value for fact in all_facts(Records(DUMP_SCHEMA.empty_table()), run_info())}
    assert said["torch"] == "2.13.0"
    assert said["on_overflow"] == "raise"


def test_a_start_time_reads_as_a_date_and_nonsense_stays_as_it_is() -> None:
    assert started_text(run_info()) == "2025-06-15 15:06:40 UTC"
    assert started_text(replace(run_info(), start_time="")) == ""
    assert started_text(replace(run_info(), start_time="2025-06-15T15:06:40.123456Z")) == "2025-06-15 15:06:40 UTC"
