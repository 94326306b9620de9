"""Let go: clear what a client has under way, disconnect it, and shut a cluster down from a client.

Prints::

    cancelled: True
    after clear: 4
    after disconnect: ClientClosedError
    the cluster has ended
"""

import threading

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError


def wait_for_long():
    threading.Event().wait(600)


def square(value):
    return value * value


# A scheduler is protected by default and refuses to be shut down by a client.
with SchedulerClusterCombo(n_workers=1, protected=False) as cluster:
    client = Client(address=cluster.get_address())

    future = client.submit(wait_for_long)
    client.clear()  # cancels all that this client has submitted and forgets its objects; it may go on
    print("cancelled:", future.cancelled())
    print("after clear:", client.submit(square, 2).result())

    client.disconnect()  # ends this client only
    try:
        client.submit(square, 2)
    except ClientClosedError as error:
        print("after disconnect:", type(error).__name__)

    Client(address=cluster.get_address()).shutdown()  # ends scheduler and workers
    print("the cluster has ended")
