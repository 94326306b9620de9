"""Fills the histories of a cluster: `python -m tests.chaos.filling` with a JSON document of settings.

A history grows until it is full, like a leak. A soak therefore begins after the histories with a fixed number of tasks
or steps are full. Other histories fill over hours: figures by time, names of peers, ids of forgotten objects. They
hold a few megabytes, and add less to a slope than the soak's limits allow.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import wait

from scaler import Client
from scaler.extensions.failures.core import MAX_FAILURES
from scaler.extensions.history.core import MAX_REMEMBERED
from scaler.monitor import model
from scaler.recorder import MAX_RECORDED_STEPS
from tests.chaos import tasks
from tests.chaos.workload import Order

STEPS_OF_A_TASK = 2
"""Minimum number of scheduler steps for a single task: one for its arrival and one for its end."""
LONE_TASKS = max(MAX_RECORDED_STEPS // STEPS_OF_A_TASK, MAX_REMEMBERED, model.MAX_TASKS)


def main() -> None:
    """Run the tasks one by one, then the failing tasks together."""
    order = Order(**json.loads(sys.argv[1]))
    with Client(order.address, name=order.name, credentials=order.credentials) as client:
        for number in range(LONE_TASKS):
            client.submit(abs, number).result()
        names = [f"{order.name}-{number}" for number in range(MAX_FAILURES)]
        wait([client.submit(tasks.failing, order.directory, name) for name in names])


if __name__ == "__main__":
    main()
