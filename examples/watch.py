"""Inspect a cluster from a script: read the contents of scaler_top once, as a JSON document.

Prints::

    2 task slots
    client nightly-report is connected
    tasks done: 10
"""

import json
import subprocess
import sys

from scaler import Client, SchedulerClusterCombo


def look(address):
    command = [sys.executable, "-m", "scaler.cli", "scaler_top", "--json", address]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


with (
    SchedulerClusterCombo(n_workers=2) as cluster,
    Client(address=cluster.get_address(), name="nightly-report") as client,
):
    client.map(abs, range(10), chunk_size=1)
    seen = look(cluster.get_monitor_address())
    print(seen["totals"]["slots"], "task slots")
    print("client", seen["clients"][0]["name"], "is connected")
    print("tasks done:", seen["tasks"]["ended"]["done"])
