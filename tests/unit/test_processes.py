"""What the system says of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from scaler.processes import LoadMeter


def test_a_process_that_works_is_seen_to_and_one_that_waits_is_not() -> None:
    # Its name has what separates the fields of the file that tells.
    waits = subprocess.Popen(
        [sys.executable, "-c", "open('/proc/self/comm', 'w').write(') S 1 ('); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with waits:
        assert waits.stdout is not None
        waits.stdout.readline()
        meter, used, began = LoadMeter(), time.process_time(), time.monotonic()
        assert {load.cpu_percent for load in meter.measure([waits.pid]).values()} == {0.0}
        inside = time.monotonic()
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        shortest_seconds = time.monotonic() - inside
        loads = meter.measure([waits.pid])
        longest_seconds, used = time.monotonic() - began, time.process_time() - used
        assert set(loads) == {os.getpid(), waits.pid}
        # The kernel counts in hundredths of a second.
        share = loads[os.getpid()].cpu_percent / 100
        assert share * longest_seconds > 0.07
        assert share * shortest_seconds < used + 0.03
        assert loads[waits.pid].cpu_percent / 100 * shortest_seconds < 0.03
        rss_bytes = psutil.Process(waits.pid).memory_info().rss
        assert loads[waits.pid].rss_bytes == pytest.approx(rss_bytes, rel=0.2)
        waits.communicate()


def test_a_process_that_is_gone_is_left_out() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert set(LoadMeter().measure([gone.pid])) == {os.getpid()}
