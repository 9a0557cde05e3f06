"""The `overflight` command, run as its users run it."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pandas as pd
import pytest

from recorder.schema import Role
from tests.builders import (
    ORIGIN_MODULE,
    batch_frames,
    broken_files,
    dump_of,
    frame,
    headroom_warning,
    healthy_run,
    killed_run,
    live_ring,
    overflow_run,
    quiet_run,
    run_info,
    tensor,
)
from viewer.cli import main

ROOT = Path(__file__).parents[2]
BAD = ["missing", "empty", "no_dumps", "text", "truncated", "cut_tail", "foreign", "newer", "no_run", "no_column"]
READERS: dict[str, list[str]] = {
    "report": ["report", "PATH"],
    "report json": ["report", "PATH", "--format", "json"],
    "report hf": ["report", "PATH", "--format", "hf"],
    "report html": ["report", "PATH", "--format", "html"],
    "ls": ["ls", "PATH"],
    "view": ["view", "PATH", "--no-browser"],
    "export": ["export", "PATH", "--format", "csv"],
    "diff": ["diff", "GOOD", "PATH"],
    "recover": ["recover", "PATH"],
}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def overflight(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "viewer.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=120)


def filled(command: list[str], path: Path, good: Path) -> list[str]:
    return [{"PATH": str(path), "GOOD": str(good)}.get(word, word) for word in command]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = overflow_run(tmp_path_factory.mktemp("good")).glob("*.parquet")
    return path


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory, good: Path) -> dict[str, Path]:
    return broken_files(tmp_path_factory.mktemp("bad"), good)


@pytest.mark.parametrize("wrong", BAD)
@pytest.mark.parametrize("name", READERS)
def test_bad_input_is_exit_code_3_and_one_sentence(
    good: Path, bad: dict[str, Path], capsys: pytest.CaptureFixture[str], name: str, wrong: str
) -> None:
    assert main(filled(READERS[name], bad[wrong], good)) == 3
    assert_one_sentence(capsys, bad[wrong])


@pytest.mark.parametrize("name", ["report", "report json", "report hf", "report html", "export", "diff"])
def test_damage_among_the_records_is_found_when_they_are_read(
    good: Path, bad: dict[str, Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(filled(READERS[name], bad["damaged"], good)) == 3
    assert_one_sentence(capsys, bad["damaged"])


def assert_one_sentence(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"overflight: {path}: ")


@pytest.mark.parametrize("name", READERS)
def test_bad_input_shows_no_traceback_in_a_real_process(good: Path, bad: dict[str, Path], name: str) -> None:
    done = overflight(*filled(READERS[name], bad["truncated"], good))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["fly"], ["report"], ["export", "x"], ["view", "x", "--port", "70000"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: overflight" in capsys.readouterr().err


def test_report_prints_the_verdict_and_tells_by_exit_code_only_when_asked(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    plain, asked = overflight("report", directory), overflight("report", directory, "--exit-code")
    assert (plain.returncode, asked.returncode) == (0, 1)
    assert plain.stdout == asked.stdout
    assert plain.stderr == ""
    assert ORIGIN_MODULE in plain.stdout


@pytest.mark.parametrize("build", [healthy_run, quiet_run])
def test_report_of_a_healthy_run_gives_0_with_exit_code(tmp_path: Path, build: object) -> None:
    assert callable(build)
    assert overflight("report", build(tmp_path), "--exit-code").returncode == 0


def test_report_json_is_one_object_on_standard_output(tmp_path: Path) -> None:
    done = overflight("report", "--format", "json", overflow_run(tmp_path, warnings=(headroom_warning(),)))
    said = json.loads(done.stdout)
    assert said["origin"]["module"] == ORIGIN_MODULE
    assert [warning["kind"] for warning in said["warnings"]] == ["headroom"]


def test_report_hf_prints_what_the_seed_would_have_printed(tmp_path: Path) -> None:
    done = overflight("report", "--format", "hf", overflow_run(tmp_path))
    assert done.stdout.startswith("output has infs\n\nDetected inf/nan during batch_number=2\nLast ")
    assert f"                  {ORIGIN_MODULE} Linear\n" in done.stdout
    assert done.stdout.endswith("\n\n\n\n")


def test_report_goes_to_a_file_when_asked(tmp_path: Path) -> None:
    done = overflight("report", overflow_run(tmp_path), "-o", tmp_path / "report.txt")
    assert done.stdout == ""
    assert ORIGIN_MODULE in (tmp_path / "report.txt").read_text()


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    done = overflight("report", overflow_run(tmp_path), "-o", tmp_path / "nowhere" / "report.txt")
    assert done.returncode == 2
    assert done.stderr.startswith("overflight: cannot write ")
    assert done.stderr.count("\n") == 1


def test_a_directory_of_runs_reports_the_newest_and_says_so(tmp_path: Path) -> None:
    old, new = overflow_run(tmp_path, "old"), overflow_run(tmp_path, "new")
    for path in old.iterdir():
        os.utime(path, (1, 1))
    done = overflight("report", "--format", "json", tmp_path)
    assert json.loads(done.stdout)["run"]["run_id"] == new.name
    assert done.stderr == f"overflight: 2 runs in {tmp_path}; this is the newest, new\n"


def test_a_broken_neighbour_is_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    (directory / "broken.parquet").write_text("no")
    done = overflight("report", directory)
    assert done.returncode == 0
    assert ORIGIN_MODULE in done.stdout
    assert f"left out {directory / 'broken.parquet'}: " in done.stderr


def test_ls_has_a_row_for_each_dump_and_for_a_run_without_one(tmp_path: Path) -> None:
    overflow_run(tmp_path, "sick")
    healthy_run(tmp_path, "well", batches=3)
    quiet_run(tmp_path, "silent")
    header, *rows = overflight("ls", tmp_path).stdout.splitlines()
    assert header.split() == ["run", "rank", "trigger", "batch", "module", "records", "size", "age", "file"]
    assert sorted(row.split()[0] for row in rows) == ["sick", "silent", "well", "well", "well"]
    (sick,) = (row for row in rows if row.startswith("sick"))
    assert sick.split()[1:5] == ["0", "overflow", "2", ORIGIN_MODULE]


def test_ls_reads_runs_where_it_is_when_nothing_is_named(tmp_path: Path) -> None:
    overflow_run(tmp_path / "runs", "here")
    assert "here" in overflight("ls", cwd=tmp_path).stdout


def test_output_into_a_reader_that_leaves_is_quiet(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    command = [sys.executable, "-m", "viewer.cli", "export", str(directory), "--format", "csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


@pytest.mark.parametrize("format_name", ["csv", "json"])
def test_export_gives_every_record_with_its_numbers(tmp_path: Path, format_name: str) -> None:
    directory = overflow_run(tmp_path)
    (path,) = directory.glob("*.parquet")
    expected = pd.read_parquet(path)
    said = overflight("export", directory, "--format", format_name).stdout
    rows = list(csv.DictReader(io.StringIO(said))) if format_name == "csv" else json.loads(said)
    assert len(rows) == len(expected)
    assert [row["module"] for row in rows] == expected["module"].tolist()
    numbers = [float(row["abs_max"]) for row in rows if row["abs_max"] not in ("", None)]
    assert numbers == expected["abs_max"].dropna().tolist()


def test_export_to_parquet_of_one_dump_is_a_dump_again(tmp_path: Path) -> None:
    (path,) = overflow_run(tmp_path).glob("*.parquet")
    copy = tmp_path / "copy.parquet"
    assert overflight("export", path, "--format", "parquet", "-o", copy).returncode == 0
    pd.testing.assert_frame_equal(pd.read_parquet(copy), pd.read_parquet(path))
    assert overflight("report", copy, "--exit-code").returncode == 1


def test_export_never_writes_over_what_it_reads(tmp_path: Path) -> None:
    (path,) = overflow_run(tmp_path).glob("*.parquet")
    before = path.read_bytes()
    done = overflight("export", path, "--format", "csv", "-o", path)
    assert done.returncode == 2
    assert path.read_bytes() == before


def test_diff_of_a_run_with_itself_finds_nothing(tmp_path: Path) -> None:
    directory = overflow_run(tmp_path)
    done = overflight("diff", directory, directory, "--exit-code")
    assert done.returncode == 0
    assert "The same: " in done.stdout


def test_diff_names_the_first_divergence(tmp_path: Path) -> None:
    frames = list(batch_frames(0, 1.0))
    a = dump_of(tmp_path / "a.parquet", frames, run_info("a"))
    changed = [*frames[:10], frames[10]._replace(records=(tensor(Role.OUTPUT, "", 9.0),)), *frames[11:]]
    b = dump_of(tmp_path / "b.parquet", changed, run_info("b"))
    plain, asked = overflight("diff", a, b), overflight("diff", a, b, "--exit-code")
    assert (plain.returncode, asked.returncode) == (0, 1)
    first = plain.stdout.split("First divergence")[1].splitlines()[2]
    assert frames[10].module in first
    assert "output" in first
    assert "9.00e+00" in first


def test_diff_of_different_batches_says_that_nothing_is_in_common(tmp_path: Path) -> None:
    a = dump_of(tmp_path / "a.parquet", batch_frames(0, 1.0), run_info("a"))
    b = dump_of(tmp_path / "b.parquet", batch_frames(5, 1.0), run_info("b"))
    done = overflight("diff", a, b, "--exit-code")
    assert done.returncode == 1
    assert "No record in common: A has batch 0, B has batch 5." in done.stdout


def test_diff_with_a_tolerance_lets_rounding_pass(tmp_path: Path) -> None:
    a = dump_of(tmp_path / "a.parquet", [frame(1, "fc", [tensor(Role.OUTPUT, "", 1.0)])], run_info("a"))
    b = dump_of(tmp_path / "b.parquet", [frame(1, "fc", [tensor(Role.OUTPUT, "", 1.0001)])], run_info("b"))
    assert overflight("diff", a, b, "--exit-code").returncode == 1
    assert overflight("diff", a, b, "--exit-code", "--rtol", "1e-3").returncode == 0


def test_recover_makes_a_dump_of_what_a_killed_run_left(tmp_path: Path) -> None:
    directory = killed_run(tmp_path)
    before = overflight("report", directory)
    assert f"overflight recover {directory}" in before.stdout
    done = overflight("recover", directory)
    (dump,) = directory.glob("recovered-*.parquet")
    assert (done.returncode, done.stdout) == (0, f"{dump}\n")
    assert len(pd.read_parquet(dump)) == sum(len(one.records) for b in range(2) for one in batch_frames(b, 1.0))
    assert "left over" not in overflight("report", directory).stdout


def test_recover_leaves_a_live_ring_alone(tmp_path: Path) -> None:
    killed_run(tmp_path)
    ring = live_ring(tmp_path / "live", "live")
    done = overflight("recover", tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.startswith("overflight: left as it is: ")
    assert ring.path.exists()


def test_view_without_streamlit_is_one_sentence(tmp_path: Path) -> None:
    program = "import sys; sys.modules['streamlit'] = None; from viewer.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "view", str(overflow_run(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 2
    assert done.stderr == 'overflight: the viewer is not installed: pip install "overflight[view]"\n'


@pytest.mark.parametrize("command", [["run", "train.py"], ["demo"]])
def test_recording_without_torch_is_one_sentence(command: list[str]) -> None:
    program = "import sys; sys.modules['torch'] = None; from viewer.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert "needs PyTorch" in done.stderr
    assert done.stderr.count("\n") == 1


def test_run_passes_arguments_and_exit_code_through(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text("import sys; print(*sys.argv[1:]); sys.exit(7)")
    done = overflight("run", "train.py", "--format", "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "--format x\n")


@pytest.mark.skipif(sys.platform == "win32", reason="asks by POSIX signals")
def test_view_answers_on_loopback_and_takes_its_server_along(tmp_path: Path) -> None:
    pytest.importorskip("streamlit")
    command = [sys.executable, "-m", "viewer.cli", "view", str(overflow_run(tmp_path)), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as child:
        assert child.stdout is not None
        url = next(word for word in child.stdout.readline().split() if word.startswith("http://"))
        assert url.startswith("http://127.0.0.1:")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert opener.open(url, timeout=30).status == 200
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == ""
    assert child.returncode == 130
    with pytest.raises(urllib.error.URLError):
        opener.open(url, timeout=5)


def test_view_names_every_bad_path_before_it_starts_anything(tmp_path: Path) -> None:
    good = overflow_run(tmp_path)
    assert overflight("view", good, tmp_path / "nowhere", "--no-browser").returncode == 3


def test_moved_dump_still_reports(tmp_path: Path) -> None:
    (path,) = overflow_run(tmp_path / "far").glob("*.parquet")
    mailed = Path(shutil.move(path, tmp_path / "mailed dump.parquet"))
    done = overflight("report", mailed.name, cwd=tmp_path)
    assert done.stdout.splitlines()[-1].endswith("overflight view 'mailed dump.parquet'")
