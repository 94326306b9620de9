"""Runs the cluster shared by all test modules of a process until stdin ends: `-m tests.shared_cluster`.

The cluster is not a child of the test process, so tests may count and kill their own children.
"""

from __future__ import annotations

import json
import os
import sys

from scaler import SchedulerClusterCombo


def main() -> None:
    if os.fork():
        os._exit(0)
    with SchedulerClusterCombo(n_workers=2) as combo:
        addresses = [combo.get_address(), combo.get_monitor_address(), combo.get_object_storage_address()]
        print(json.dumps(addresses), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
