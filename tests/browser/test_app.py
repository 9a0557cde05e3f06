"""The app in a real browser: what a reader sees, clicks and sends on as a link."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from recorder.dump import read_dump, to_frame
from recorder.verdict import diagnose
from tests.browser.conftest import ROOT, WINDOW, App, app_at, serving
from tests.builders import ORIGIN_MODULE, broken_files, headroom_warning, healthy_run, overflow_run, quiet_run
from viewer.columns import Records
from viewer.filters import Filter
from viewer.picture import picture
from viewer.query import exported, select
from viewer.runs import open_paths
from viewer.sources import chosen_source, load_source

ORIGIN_SEQ = 139
SAMPLES = sorted(path.parent for path in (ROOT / "sample_logs").glob("*/_run.json"))


@dataclass(frozen=True)
class Place:
    """A server with several runs, one of them with a file that can't be read."""

    address: str
    overflow: Path
    healthy: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    runs = tmp_path_factory.mktemp("runs")
    overflow = next(overflow_run(runs, warnings=(headroom_warning(),)).glob("*.parquet"))
    healthy = healthy_run(runs, batches=4)
    quiet_run(runs)
    shutil.copy(broken_files(tmp_path_factory.mktemp("broken"), overflow)["truncated"], healthy / "trace-cut.parquet")
    with serving(runs) as address:
        yield Place(address, overflow, healthy)


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """One for all tests, so that the app's own scripts are fetched once."""
    with browser.new_context(**WINDOW) as opened:
        yield opened


@pytest.fixture
def app(window: BrowserContext, place: Place) -> Iterator[App]:
    with app_at(window, place.address) as opened:
        yield opened


@pytest.fixture(scope="module")
def samples() -> Iterator[str]:
    with serving(ROOT / "sample_logs") as address:
        yield address


def shown(path: Path, chosen: Filter | None = None) -> int:
    """How many points the query gives for a dump."""
    dump = read_dump(path)
    return picture(Records(dump.table), chosen or Filter(), dump.info.finfo).shown


def test_a_directory_of_runs_is_a_table_that_leads_to_each(app: App) -> None:
    app.open()
    rows = app.page.locator(".of-table tbody tr")
    assert {row.split("\t")[0] for row in rows.all_inner_texts()} == {"run-a", "healthy", "quiet"}
    (overflowed,) = (row for row in rows.all_inner_texts() if row.startswith("run-a"))
    assert ORIGIN_MODULE in overflowed
    app.page.get_by_role("link", name="run-a").click()
    app.wait_for_query(run="run-a")
    assert "overflow" in app.text(".of-head")


def test_the_verdict_is_the_recorder_s_word_for_word(app: App, place: Place) -> None:
    dump = read_dump(place.overflow)
    app.open("?run=run-a")
    said = app.page.locator(".of-verdict p").all_inner_texts()
    assert said == [line.replace("->", "→") for line in diagnose(to_frame(dump.table), dump.info).lines]
    assert ORIGIN_MODULE in said[0]


def test_the_picture_has_as_many_points_as_the_query_says(app: App, place: Place) -> None:
    app.open("?run=run-a")
    count = shown(place.overflow)
    app.wait_for_points(count)
    assert f"{count:,} of {count:,} points" in app.text(".of-caption")
    expect(app.page.locator(".js-plotly-plot .scatterlayer .point").first).to_be_visible()


def test_facts_warnings_and_strips_stand_with_it(app: App) -> None:
    app.open("?run=run-a")
    for words in ("overflow", "1,200 evicted before", "3.0%", "headroom", "0.0 binades"):
        assert words in app.text(".of-facts")
    expect(app.page.get_by_text("2.1 binades left, shrinking")).to_be_visible()
    expect(app.page.get_by_text("Non-finite but expected (1)")).to_be_visible()
    expect(app.page.get_by_text("Beside the frames")).to_be_visible()


def test_typing_a_name_filters_picture_tree_and_address(app: App, place: Place) -> None:
    app.open("?run=run-a")
    app.page.get_by_label("Modules").first.fill("*.wo")
    app.page.keyboard.press("Enter")
    app.wait_for_query(name="*.wo")
    app.wait_for_points(shown(place.overflow, Filter(name="*.wo")))
    expect(app.tree_item(ORIGIN_MODULE)).to_be_visible()
    expect(app.tree_item("embed")).to_have_count(0)


def test_choosing_a_module_in_the_tree_filters_and_choosing_it_again_does_not(app: App, place: Place) -> None:
    app.open("?run=run-a")
    app.tree_item("encoder.block.3").click()
    app.wait_for_query(module="encoder.block.3")
    app.wait_for_points(shown(place.overflow, Filter(module="encoder.block.3")))
    app.tree_item("encoder.block.3").click()
    app.wait_for_query(module="")
    app.wait_for_points(shown(place.overflow))


def test_roles_batches_and_axis_are_filters_too(app: App, place: Place) -> None:
    app.open("?run=run-a&batches=1-2")
    app.page.get_by_role("button", name="output", exact=True).click()
    app.wait_for_query(role="output")
    app.page.get_by_text("Module depth").click()
    app.wait_for_query(x="depth", batches="1-2", role="output")
    app.wait_for_points(shown(place.overflow, Filter(roles=("output",), batches=(1, 2), x="depth")))
    app.page.get_by_role("button", name="Clear filters").click()
    app.wait_for_query(role="", batches="", x="depth")
    app.wait_for_points(shown(place.overflow, Filter(x="depth")))


def test_a_link_restores_everything(app: App, place: Place) -> None:
    app.open(
        f"?run=run-a&name=ff&role=input,output&batches=2-2&x=batch&metric=abs_max&frame={ORIGIN_SEQ}&tensor=output/"
    )
    chosen = Filter(name="ff", roles=("input", "output"), batches=(2, 2), x="batch", metrics=("abs_max",))
    app.wait_for_points(shown(place.overflow, chosen))
    expect(app.page.get_by_label("Modules").first).to_have_value("ff")
    pressed = app.page.locator('button[aria-pressed="true"], button[aria-checked="true"]').all_inner_texts()
    assert pressed == ["input", "output", "Overview", "● abs max", "Batch"]
    assert ORIGIN_MODULE in app.text('.of-section:has-text("encoder")')
    assert app.query()["metric"] == "abs_max"


def test_a_wrong_link_is_the_plain_view(app: App, place: Place) -> None:
    app.open("?run=run-a&role=nonsense&batches=x&x=sideways&frame=abc&page=-1")
    app.wait_for_points(shown(place.overflow))


def test_a_click_on_a_point_opens_its_frame(app: App) -> None:
    app.open("?run=run-a")
    app.page.wait_for_selector(".js-plotly-plot .point")
    where = app.page.evaluate(
        """() => { const plot = document.querySelector('.js-plotly-plot'), axes = plot._fullLayout;
        const mark = plot._fullData.find((trace) => trace.name === 'non-finite');
        const box = plot.querySelector('.nsewdrag').getBoundingClientRect();
        return [box.x + axes.xaxis.d2p(mark.x[0]), box.y + axes.yaxis.d2p(mark.y[0])]; }"""
    )
    app.page.mouse.click(*where)
    app.wait_for_query(frame=str(ORIGIN_SEQ), tensor="output/")
    expect(app.page.get_by_text("Only this module")).to_be_visible()
    app.page.get_by_role("button", name="Close", exact=True).click()
    app.wait_for_query(frame="", tensor="")


def test_records_are_paged_sorted_and_counted(app: App, place: Place) -> None:
    records = Records(read_dump(place.overflow).table)
    app.open("?run=run-a")
    app.page.get_by_role("radio", name="Records").click()
    app.wait_for_query(view="records")
    assert f"{len(records):,} of {len(records):,} records" in app.text(".of-head")
    app.page.get_by_role("button", name="Next").click()
    app.wait_for_query(page="2")
    app.page.get_by_label("Modules").first.fill("wo")
    app.page.keyboard.press("Enter")
    app.wait_for_query(name="wo", page="")
    assert f"{len(select(records, Filter(name='wo'))):,} of {len(records):,} records" in app.text(".of-head")


def test_what_is_exported_is_what_is_in_view(app: App, place: Place, tmp_path: Path) -> None:
    wanted = exported(Records(read_dump(place.overflow).table), Filter(name="wo"))
    app.open("?run=run-a&view=records&name=wo")
    files = {}
    for kind in ("CSV", "Parquet"):
        with app.page.expect_download() as coming:
            app.page.get_by_role("button", name=kind, exact=True).click()
        files[kind] = tmp_path / coming.value.suggested_filename
        coming.value.save_as(files[kind])
    dump = read_dump(files["Parquet"])
    assert dump.table.replace_schema_metadata(None).equals(wanted)
    assert dump.info == read_dump(place.overflow).info
    csv = pd.read_csv(io.BytesIO(files["CSV"].read_bytes()), keep_default_na=False, na_values=[""])
    assert csv["abs_max"].tolist() == wanted.column("abs_max").to_pylist()
    assert csv["module"].tolist() == wanted.column("module").to_pylist()


def test_the_traced_batches_of_a_run_are_one_picture(app: App, place: Place) -> None:
    app.open("?run=healthy")
    assert "Healthy" in app.text(".of-verdict")
    tables = [read_dump(path).table for path in sorted(place.healthy.glob("trace-batch*.parquet"))]
    records = Records.of_many(tables)
    app.wait_for_points(picture(records, Filter(), read_dump(place.overflow).info.finfo).shown)


def test_a_run_without_a_dump_says_so(app: App) -> None:
    app.open("?run=quiet")
    assert "wrote no dump" in app.text(".of-verdict")
    app.open("?run=quiet&view=records")
    expect(app.page.get_by_text("it has no records")).to_be_visible()


def test_a_file_that_can_t_be_read_is_an_error_box_and_the_rest_is_usable(app: App, place: Place) -> None:
    app.open("?run=run-a")
    assert "trace-cut.parquet: " in app.text('[data-testid="stAlert"]')
    app.wait_for_points(shown(place.overflow))


def test_a_dump_that_breaks_under_the_server_is_an_error_box(browser: Browser, tmp_path: Path) -> None:
    directory = overflow_run(tmp_path / "good")
    (dump,) = directory.glob("*.parquet")
    broken = broken_files(tmp_path / "broken", dump)["damaged"]
    shutil.copy(broken, dump)
    with serving(directory) as address, browser.new_context(**WINDOW) as window, app_at(window, address) as app:
        app.open()
        assert dump.name in app.text('[data-testid="stAlert"]')
        expect(app.page.get_by_text("Overflight").first).to_be_visible()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_real_run_is_told_drawn_filtered_and_linked_to(window: BrowserContext, samples: str, sample: Path) -> None:
    source = chosen_source(open_paths([sample])[0], "")
    assert source is not None
    records, info = load_source(source)
    verdict = diagnose(to_frame(records.table), info)
    chosen = Filter(phases=("forward",), name="dense")
    with app_at(window, samples) as app:
        app.open(f"?run={sample.name}")
        assert app.text(".of-verdict .of-first") == verdict.lines[0]
        app.wait_for_points(picture(records, Filter(), info.finfo, origin=verdict.origin).shown)
        app.page.get_by_role("button", name="forward", exact=True).click()
        app.wait_for_query(phase="forward")
        app.page.get_by_label("Modules").first.fill("dense")
        app.page.keyboard.press("Enter")
        app.wait_for_query(phase="forward", name="dense")
        filtered = picture(records, chosen, info.finfo, origin=verdict.origin)
        assert filtered.shown > 0
        app.wait_for_points(filtered.shown)
        link = app.page.url
    with app_at(window, samples) as app:
        app.open(link.removeprefix(samples).removeprefix("/"))
        app.wait_for_points(filtered.shown)
        expect(app.page.get_by_label("Modules").first).to_have_value("dense")


def test_the_dark_theme_has_its_own_colours(browser: Browser, place: Place) -> None:
    with browser.new_context(**WINDOW, color_scheme="dark") as window, app_at(window, place.address) as app:
        app.open("?run=run-a")
        app.wait_for_points(shown(place.overflow))
        ink = app.page.evaluate("() => document.querySelector('.js-plotly-plot').layout.font.color")
        assert ink == "#e4e8ec"
