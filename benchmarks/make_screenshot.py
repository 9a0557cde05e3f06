"""Make the pictures of the README: the app, on real samples, as a browser shows it.

    python benchmarks/make_screenshot.py [DIRECTORY]

Writes depth-picture.png (light), depth-picture-dark.png and app.png into the directory (default: docs), at twice the
resolution of the page. Needs Chromium (scripts/system.sh browser) and the runs of sample_logs/.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser.conftest import FLAGS, ROOT, App, chromium, serving

SAMPLE = ROOT / "sample_logs" / "mt5-fp16-overflow"
FORWARD = "?phase=forward"
WIDTH, HEIGHT = 1400, 1180


def main() -> None:
    """Write all pictures, and say which."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    directory.mkdir(parents=True, exist_ok=True)
    with serving(SAMPLE) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        for path in (
            _picture(browser, address, directory / "depth-picture.png", "light"),
            _picture(browser, address, directory / "depth-picture-dark.png", "dark"),
            _page(browser, address, directory / "app.png"),
        ):
            print(f"{path}  {path.stat().st_size / 1024:.0f} KiB")
        browser.close()


def _picture(browser: Browser, address: str, path: Path, theme: str) -> Path:
    """The depth picture alone."""
    app = _open(browser, address, theme)
    app.page.locator(".js-plotly-plot").first.screenshot(path=path)
    app.page.close()
    return path


def _page(browser: Browser, address: str, path: Path) -> Path:
    """The whole first page."""
    app = _open(browser, address, "light")
    app.page.screenshot(path=path)
    app.page.close()
    return path


def _open(browser: Browser, address: str, theme: str) -> App:
    window = {"width": WIDTH, "height": HEIGHT}
    context = browser.new_context(viewport=window, device_scale_factor=2, color_scheme=theme)  # type: ignore[arg-type]
    app = App(context.new_page(), address)
    app.open(FORWARD)
    app.page.wait_for_selector(".js-plotly-plot canvas, .js-plotly-plot .point")
    app.page.wait_for_selector('button[aria-pressed="true"]')
    app.page.wait_for_load_state("networkidle")
    app.page.evaluate("() => document.fonts.ready")
    return app


if __name__ == "__main__":
    main()
