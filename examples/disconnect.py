"""Close a client: its tasks are dropped, while other clients and the cluster continue. `with` does so automatically.

Prints::

    dropped: ClientDisconnectedError
    ended: ClientClosedError
    another client: 4
"""

import threading

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ClientClosedError, ClientDisconnectedError


def wait_for_long():
    threading.Event().wait()


def square(value):
    return value * value


with SchedulerClusterCombo(n_workers=1) as cluster:
    client = Client(address=cluster.get_address())
    future = client.submit(wait_for_long)

    client.disconnect()
    try:
        future.result()
    except ClientDisconnectedError as error:
        print("dropped:", type(error).__name__)
    try:
        client.submit(square, 2)
    except ClientClosedError as error:
        print("ended:", type(error).__name__)

    with Client(address=cluster.get_address()) as other:
        print("another client:", other.submit(square, 2).result())
