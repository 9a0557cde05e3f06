"""Reports: which dump gives the verdict, what the JSON holds, what the text and the HTML say."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from recorder.schema import Overhead, Role, SilentWarning, Trigger, TriggerKind
from tests.builders import (
    ORIGIN_MODULE,
    batch_frames,
    dump_of,
    frame,
    headroom_warning,
    healthy_run,
    overflow_run,
    quiet_run,
    run_info,
    tensor,
    write_run_file,
)
from viewer.report import Report, build_report, report_json
from viewer.report_text import headroom_text, report_text
from viewer.runs import open_paths
from viewer.strict_json import dumps

KEYS = {"run", "trigger", "origin", "verdict", "warnings", "dumps"}
WARNING_KEYS = {"kind", "batch", "phase", "module", "role", "key", "text"}


def report_of(path: Path) -> Report:
    (run,) = open_paths([path])
    return build_report(run)


def judged(report: Report) -> list[Path]:
    return [file.path for file in report.source.files] if report.source else []


def test_json_names_trigger_and_origin_of_an_overflow(tmp_path: Path) -> None:
    said = report_json(report_of(overflow_run(tmp_path)))
    assert set(said) == KEYS
    assert said["trigger"]["kind"] == "overflow"
    for place in (said["trigger"], said["origin"]):
        assert (place["module"], place["role"], place["batch"]) == (ORIGIN_MODULE, "output", 2)
    assert ORIGIN_MODULE in said["verdict"]
    assert said["dumps"] == [str(next(tmp_path.rglob("*.parquet")))]


def test_json_is_strict_even_when_a_number_was_nan(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    write_run_file(directory, run_info("run-a", overhead=Overhead(float("nan"), 0.0, float("inf"))))
    said = dumps(report_json(report_of(directory)))
    assert "NaN" not in said
    assert json.loads(said)["run"]["overhead"] == {"seconds": "nan", "batch_seconds": 0.0, "share": "inf"}


def test_warnings_of_dumps_and_run_are_joined_without_repeats(tmp_path: Path) -> None:
    early, late = headroom_warning(batch=0), headroom_warning(batch=1)
    directory = overflow_run(tmp_path, warnings=(late,))
    only_in_run = SilentWarning("stalled", 2, "optimizer", "head", "parameter", "weight", "no element changed")
    write_run_file(directory, run_info("run-a", warnings=(early, late, only_in_run)))
    said = report_json(report_of(directory))["warnings"]
    assert [(w["kind"], w["batch"]) for w in said] == [("headroom", 0), ("headroom", 1), ("stalled", 2)]
    assert all(set(w) == WARNING_KEYS for w in said)


def test_a_run_without_dumps_is_no_error(tmp_path: Path) -> None:
    report = report_of(quiet_run(tmp_path, warnings=(headroom_warning(),)))
    said = report_json(report)
    assert said["trigger"] is None
    assert said["origin"] is None
    assert said["dumps"] == []
    assert said["verdict"] == "No overflow: this run wrote no dump. 1 warning."
    assert len(said["warnings"]) == 1
    assert not report.overflowed


def test_a_healthy_traced_run_did_not_overflow(tmp_path: Path) -> None:
    report = report_of(healthy_run(tmp_path))
    assert not report.overflowed
    assert report.origin is None
    assert report.trigger is not None
    assert report.trigger.kind == "traced_batch"


def test_a_healthy_run_is_judged_by_all_its_dumps(tmp_path: Path) -> None:
    report = report_of(healthy_run(tmp_path, batches=3))
    assert len(judged(report)) == 3
    assert set(report.records["batch"]) == {0, 1, 2}


def test_the_first_overflow_gives_the_verdict_not_the_newest_dump(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    (first,) = directory.glob("*.parquet")
    later = run_info("run-a", trigger=Trigger("overflow", batch=9, seq=900))
    dump_of(directory / "overflow-batch000009-rank0000.parquet", batch_frames(9, 30.0), later)
    report = report_of(directory)
    assert judged(report) == [first]


def test_without_an_overflow_dump_the_first_dump_with_something_non_finite_is_judged(tmp_path: Path) -> None:
    directory = healthy_run(tmp_path)
    bad = frame(99, "head", [tensor(Role.INPUT, "0", 1.0), tensor(Role.OUTPUT, "", None, nan=4)], batch=1, origin=True)
    trigger = Trigger(TriggerKind.SIGNAL.value, batch=1)
    path = dump_of(directory / "a-signal.parquet", [bad], run_info("healthy", trigger=trigger))
    report = report_of(directory)
    assert judged(report) == [path]
    assert report.overflowed


def test_text_shows_verdict_then_the_frames_up_to_the_origin(tmp_path: Path) -> None:
    report = report_of(overflow_run(tmp_path, warnings=(headroom_warning(),)))
    said = report_text(report)
    lines = said.splitlines()
    assert said.index(report.lines[0]) < said.index("1 warning") < said.index("12 frames that led there")
    last = next(line for line in reversed(lines) if "ORIGIN" in line)
    assert "inf ORIGIN" in last
    assert "6.50e+04" in last
    assert "float16" in last
    assert any(ORIGIN_MODULE in line and "Linear" in line for line in lines)
    assert "1,200 older records" in said
    assert "0.12 s in hooks, 3.0%" in said
    assert "3x" in said
    assert "attention_mask of encoder" in said
    assert "overflight view" in lines[-1]


def test_one_kind_of_warning_in_every_layer_does_not_hide_another(tmp_path: Path) -> None:
    many = tuple(headroom_warning(module=f"layer.{i}") for i in range(30))
    other = SilentWarning("stalled", 2, "optimizer", "head", "parameter", "weight", "head did not change")
    said = report_text(report_of(quiet_run(tmp_path, warnings=(*many, other))))
    assert "31 warnings" in said
    assert "head did not change" in said
    assert "and 26 more of headroom" in said


def test_text_columns_are_aligned(tmp_path: Path) -> None:
    lines = report_text(report_of(overflow_run(tmp_path))).splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["seq"])
    edge = lines[start].index("dtype")
    table = lines[start + 1 : lines.index("", start)]
    assert sum(line[:5].strip() != "" for line in table) == 12
    assert {line[edge - 2 : edge] for line in table} == {"  "}
    assert {line[edge:].split()[0] for line in table} == {"float16", "NoneType"}


def test_names_in_a_dump_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "layer\x1b[2J\nroot"
    rows = [tensor(Role.INPUT, "0", 1.0), tensor(Role.OUTPUT, "\x07", None, posinf=1)]
    info = run_info("evil\x1b]0;", trigger=Trigger("overflow", 0, 0, 1, 0, "forward", evil, "output", "\x07"))
    path = dump_of(tmp_path / "evil.parquet", [frame(1, evil, rows, origin=True)], info)
    said = report_text(report_of(path))
    assert said.replace("\n", "").isprintable()
    assert "layer\\x1b[2J\\nroot" in said


def test_headroom_is_in_binades_and_empty_where_it_has_no_meaning() -> None:
    info = run_info()
    assert headroom_text(65504.0 / 8, "float16", info) == "3.0"
    assert headroom_text(65504.0, "float16", info) == "0.0"
    assert [headroom_text(*args, info) for args in ((3.0, "int64"), (0.0, "float16"), (float("nan"), "float16"))] == [
        ""
    ] * 3


class _Page(HTMLParser):
    """The text of a page and the addresses that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    from viewer.report_html import report_html

    report = report_of(overflow_run(tmp_path))
    page = _Page()
    page.feed(report_html(report))
    assert page.loads == []
    assert all(line in page.words for line in report.lines)


def test_html_escapes_names(tmp_path: Path) -> None:
    from viewer.report_html import report_html

    evil = "</script><script>alert(1)</script>"
    rows = [tensor(Role.INPUT, "0", 1.0), tensor(Role.OUTPUT, "", None, posinf=1)]
    info = run_info(evil, trigger=Trigger("overflow", 0, 0, 1, 0, "forward", evil, "output", ""))
    path = dump_of(tmp_path / "evil.parquet", [frame(1, evil, rows, origin=True)], info)
    said = report_html(report_of(path))
    assert "<script>alert" not in said
    assert "&lt;script&gt;alert" in said
