"""Say more about a task with submit_verbose: its priority, its time limit, its name, how often it may run again.

The arguments come as a tuple and a dict, so that no option can be mistaken for an argument of the function.

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
    # The one worker is busy, so that the others wait.
    long = client.submit(work, 3600)
    while not long.running():
        time.sleep(0.01)

    # Higher priorities run first; 0 is the default. The alarm overtakes the reports.
    futures = []
    for name, priority in [("report 1", 0), ("report 2", 0), ("alarm", 10)]:
        # retries=0: a task that must not run twice. It is not sent to a worker that is busy.
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
