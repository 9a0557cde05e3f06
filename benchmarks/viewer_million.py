"""What a million records cost the viewer, seen from a browser: first picture, redraws, and the server's memory.

    python benchmarks/viewer_million.py [--records 1000000] [--rounds 5] [--json FILE]

Starts `overflight view` on a generated dump and drives it with headless Chromium. Times are wall clock from the
reader's action to the drawn chart; each is the median of all rounds. Prints a table, and JSON on request.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from playwright.sync_api import BrowserContext, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.synthetic_dump import write_synthetic_dump
from recorder.dump import read_dump
from tests.browser.conftest import FLAGS, WINDOW, App, chromium, serving
from viewer.columns import Records
from viewer.filters import Filter
from viewer.picture import picture

TARGETS = {"first picture, s": 5.0, "another picture, s": 1.0, "server memory, MB": 1000.0}
FILTERS = {
    "*.ff.wo": Filter(name="*.ff.wo"),
    "attention": Filter(name="attention"),
    "Linear": Filter(name="Linear"),
    "": Filter(),
}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        dump = write_synthetic_dump(Path(directory) / "overflow-batch000000-rank0000.parquet", options.records)
        found = measure(dump, options.rounds)
    _print(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(dump: Path, rounds: int) -> dict[str, float]:
    """Seconds, megabytes and counts by name."""
    table, info = read_dump(dump)
    records = Records(table)
    counts = {name: picture(records, chosen, info.finfo).shown for name, chosen in FILTERS.items()}
    with _browser() as window:
        first = [_first_picture(window, dump, counts[""]) for _ in range(rounds)]
        with serving(dump) as address:
            redraws = _redraws(App(window.new_page(), address), counts, rounds)
            memory = _memory()
    return {
        "records": len(records),
        "points of the whole picture": counts[""],
        "first picture, s": statistics.median(first),
        "another picture, s": statistics.median(redraws),
        "slowest other picture, s": max(redraws),
        "server memory, MB": memory,
    }


def _first_picture(window: BrowserContext, dump: Path, count: int) -> float:
    """From the address to the drawn chart, on a server that has read nothing yet."""
    with serving(dump) as address:
        app = App(window.new_page(), address)
        start = time.perf_counter()
        app.page.goto(address)
        app.wait_for_points(count)
        seconds = time.perf_counter() - start
        app.page.close()
    return seconds


def _redraws(app: App, counts: dict[str, int], rounds: int) -> list[float]:
    """From the key that ends a name filter to the drawn chart."""
    app.open()
    app.wait_for_points(counts[""])
    field = app.page.get_by_label("Modules").first
    seconds = []
    for name in list(counts) * rounds:
        field.fill(name)
        start = time.perf_counter()
        field.press("Enter")
        app.wait_for_points(counts[name])
        seconds.append(time.perf_counter() - start)
        app.settle()
    return seconds


def _memory() -> float:
    """The most that any server below us has held, in MB: its peak resident set where the system tells, else now's."""
    servers = [one for one in psutil.Process().children(recursive=True) if "viewer.server" in one.cmdline()]
    return max(_peak(one) for one in servers)


def _peak(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) / 1000
    return float(process.memory_info().rss) / 1e6


@contextmanager
def _browser() -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield browser.new_context(**WINDOW)
        browser.close()


def _print(found: dict[str, float]) -> None:
    for name, value in found.items():
        target = f"   target below {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"{name:30} {value:>12,.2f}{target}" if value % 1 else f"{name:30} {value:>12,.0f}{target}")


if __name__ == "__main__":
    main()
