"""The garbage collector of the scheduler's process, tested in a separate process."""

from __future__ import annotations

import subprocess
import sys


def test_cyclic_garbage_is_collected_with_few_live_tasks_only() -> None:
    program = """
import gc, weakref
from scaler.scheduler.vitals import MAX_LIVING_TASKS, configure_collector, collect_when_small
class Node: pass
configure_collector()
node = Node()
node.itself, found = node, weakref.ref(node)
del node
collect_when_small(MAX_LIVING_TASKS + 1)
assert found() is not None
collect_when_small(MAX_LIVING_TASKS)
assert found() is None
assert gc.get_threshold()[2] > 10**6
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_fragmented_free_memory_is_returned_to_the_system() -> None:
    program = """
from pathlib import Path
from scaler.scheduler.vitals import collect_when_small
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = resident()
payloads = [bytes(20_000) for _ in range(5000)]
payloads = payloads[::100]
filled = resident()
collect_when_small(0)
assert filled > before + 60_000_000 > resident() + 40_000_000, (before, filled, resident())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
