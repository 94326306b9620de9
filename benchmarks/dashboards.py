"""Takes screenshots of Scaler's page and Dask's dashboard during the same work, in pairs that answer one question.

    python benchmarks/peers.py dask     # once
    python benchmarks/dashboards.py [--seconds 240] [--into docs/images]

Writes QUESTION-scaler.png and QUESTION-dask.png, and screenshots for docs/web.md. Prints the origin of each. Only one
system runs at a time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, sync_playwright

from benchmarks.peers import interpreter
from tests.browser.conftest import FLAGS, HOW, chromium

PAGES: Mapping[str, Mapping[str, str]] = {
    "progress": {"scaler": "/#/", "dask": "/status"},
    "slow": {"scaler": "/#/clients", "dask": "/individual-compute-time-per-key"},
    "profile": {"scaler": "/#/profile?function=simulate_paths", "dask": "/profile"},
    "workers": {"scaler": "/#/workers", "dask": "/workers"},
    "failures": {"scaler": "/#/failures", "dask": "/individual-task-stream"},
}
OWN_PAGES = {"web-overview": ("/#/", 960), "web-timeline": ("/#/timeline", 390)}
"""Screenshots for docs/web.md: name, path, and height in pixels."""
WIDTH, HEIGHT = 1000, 640
DRAWN_MILLISECONDS = 4_000
"""Time until a page shows current data. Both pages draw new data at most once per second."""


def take(page: Page, system: str, seconds: float, into: Path) -> None:
    """Take all screenshots of one system."""
    python = interpreter(system)
    if python is None:
        raise SystemExit(f"{system} is not installed: python benchmarks/peers.py {system}")
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen(
            [python, str(Path(__file__).with_name("dashboard_work.py")), system, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SLOW_WORKER_CLAIM": str(Path(folder, "claim"))},
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            address = worker.stdout.readline().strip()
            page.goto(address)
            page.wait_for_timeout(1_000 * seconds / 2)
            for question, paths in PAGES.items():
                page.goto(address + paths[system])
                page.wait_for_timeout(DRAWN_MILLISECONDS)
                picture = into / f"{question}-{system}.png"
                page.screenshot(path=picture)
                print(f"{picture}: {paths[system]} of {system}", flush=True)
            for name, (path, height) in (OWN_PAGES if system == "scaler" else {}).items():
                page.set_viewport_size({"width": 1280, "height": height})
                page.goto(address + path)
                if name == "web-timeline":
                    page.get_by_role("button", name="1 min").click()
                page.wait_for_timeout(DRAWN_MILLISECONDS)
                page.screenshot(path=into / f"{name}.png")
        finally:
            worker.communicate(timeout=seconds + 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--into", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    executable = chromium()
    if executable is None:
        raise SystemExit(HOW)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        for system in ("scaler", "dask"):
            context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            take(context.new_page(), system, given.seconds, given.into)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
