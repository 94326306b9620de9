"""Iterate over results as they arrive, in any order: a slow item does not delay others.

Prints::

    two quick results arrived before the slow one
    total requests: 30
"""

import tempfile
import threading
from pathlib import Path

from scaler import Client, SchedulerClusterCombo


def requests_of(log, archive_is_open):
    """Simulates reading log files, one of which is slow: it waits until the archive opens."""
    while log == "archive" and not archive_is_open.exists():
        threading.Event().wait(0.01)
    return log, {"monday": 7, "tuesday": 11, "archive": 12}[log]


with (
    tempfile.TemporaryDirectory() as directory,
    SchedulerClusterCombo(n_workers=2) as cluster,
    Client(address=cluster.get_address()) as client,
):
    key = Path(directory, "open")
    came = []
    total = 0
    logs = ["archive", "monday", "tuesday"]
    for log, requests in client.imap_unordered(requests_of, logs, [key] * len(logs), chunk_size=1):
        came.append(log)
        total += requests
        if len(came) == 2:
            key.touch()
    print("two quick results arrived before the slow one" if came[-1] == "archive" else came)
    print("total requests:", total)
