"""Cancel waiting and running tasks. Cancelling a running task kills its process, which is then replaced.

Prints::

    True True
    CancelledError
    18
    False: it had ended
"""

import threading
from concurrent.futures import CancelledError

from scaler import Client, SchedulerClusterCombo


def search_forever():
    threading.Event().wait()


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    running = client.submit(search_forever)
    waiting = client.submit(search_forever)
    print(waiting.cancel(), running.cancel())  # True: neither will have a result

    try:
        running.result()
    except CancelledError as error:
        print(type(error).__name__)

    found = client.submit(max, [7, 18, 3])  # the worker is free again
    print(found.result())
    print(f"{found.cancel()}: it had ended")
