"""A minimal run of the benchmark for bytes between hosts: its counts, and its cleanup after an interrupt."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.host_runs import Measured
from benchmarks.hosts import PROGRAMS, table
from tests.hosts import Traffic, ip, why_not
from tests.waiting import until

HOSTS = Path(__file__).parents[2] / "benchmarks" / "hosts.py"
NEEDS_HOSTS = pytest.mark.skipif(bool(why_not()), reason=f"no simulated hosts here: {why_not()}")
SMALL = ["--short", "--systems", "scaler", "--programs"]


def namespaces(pid: int) -> list[str]:
    return [line for line in ip("netns", "list").splitlines() if line.startswith(f"scaler-{pid}-")]


@NEEDS_HOSTS
def test_run_counts_every_byte_at_both_ends(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    # Run from another directory, because the script must find its imports from anywhere.
    run = subprocess.run(
        [sys.executable, HOSTS, *SMALL, "shared", "--json", told],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(told.read_text())["shared"]
    size, links = found["arguments"]["megabytes"] * 1e6, found["scaler"]["links"]
    assert set(links) == {"host0", "host1"}
    # One copy for both of the host's slots.
    assert size < links["host1"]["received_bytes"] < 1.05 * size
    assert links["host0"]["sent_bytes"] == pytest.approx(links["host1"]["received_bytes"], rel=0.01)
    assert f"| host1 | {links['host1']['sent_bytes'] / 1e6:.2f} |" in run.stdout


@NEEDS_HOSTS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_hosts(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, HOSTS, *SMALL, "shared"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    found = until(lambda: [name for name in namespaces(process.pid) if "host1" in name])
    namespace = found[0].split()[0]
    until(lambda: ip("netns", "pids", namespace))
    process.send_signal(number)
    assert process.wait(30) != 0
    assert namespaces(process.pid) == []


def test_row_passes_when_all_figures_meet_their_aims() -> None:
    given = PROGRAMS["broadcast"].short
    links = {"host0": Traffic(6_000_000, 0), "host1": Traffic(12_100_000, 4_000_000)}
    text = table({"broadcast": {"scaler": Measured(given, 1.0, links), "dask": "no"}}, {"broadcast": given}, ["scaler"])
    time, busiest, seconds = [line.split(" | ")[1:] for line in text.splitlines()[2:]]
    assert time == ["time, in copies at a link's full rate", "2.50", "2.50", "yes |"]
    assert busiest == ["busiest link, in copies", "3.02", "3", "no |"]
    assert seconds == ["s", "1", "", " |"]
