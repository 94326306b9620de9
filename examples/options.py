"""Set a task's options with submit_verbose: priority, time limit, name, and number of retries.

Pass the arguments as a tuple and a dict, which separates them from the options.

Prints::

    order: ['alarm', 'report 1', 'report 2']
    ended: TaskTimeoutError
"""

import threading
import time

from scaler import Client, SchedulerClusterCombo
from scaler.errors import TaskTimeoutError


def work(seconds):
    threading.Event().wait(seconds)


ended = []

with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    # The only worker is busy, so the other tasks wait.
    long = client.submit(work, 3600)
    while not long.running():
        time.sleep(0.01)

    # Higher priorities run first; the default is 0. The alarm overtakes the reports.
    futures = []
    for name, priority in [("report 1", 0), ("report 2", 0), ("alarm", 10)]:
        # retries=0: a task that must not run twice. The scheduler never sends it to a busy worker.
        future = client.submit_verbose(work, (0,), {}, name=name, priority=priority, retries=0)
        future.add_done_callback(lambda _, name=name: ended.append(name))
        futures.append(future)
    long.cancel()
    for future in futures:
        future.result()
    print("order:", ended)

    try:
        client.submit_verbose(work, (60,), timeout_seconds=0.2).result()
    except TaskTimeoutError as error:
        print("ended:", type(error).__name__)
