"""Resource usage of a system's processes, even if some exit meanwhile."""

from __future__ import annotations

import subprocess
import sys

import psutil

from benchmarks.processes import cpu_seconds, cpu_seconds_since, processes


def test_skips_processes_that_exit_during_the_scan() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        everyone = processes()
        before = cpu_seconds(everyone)
        assert child.pid in [each.pid for each in before]
    after = [each.pid for each in cpu_seconds(everyone)]
    assert psutil.Process().pid in after
    assert child.pid not in after
    assert cpu_seconds_since(before) >= 0
