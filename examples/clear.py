"""Reset a client: cancel its tasks and release the objects that it has sent. You can continue to use the client.

Prints::

    cancelled: True True
    the table is lost: ObjectLostError
    new object: 6
"""

import threading

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ObjectLostError


def simulate_forever():
    threading.Event().wait()


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    table = client.send_object([1, 2, 3], name="table")
    futures = [client.submit(simulate_forever) for _ in range(2)]

    client.clear()
    print("cancelled:", *(future.cancelled() for future in futures))
    try:
        client.submit(sum, table).result()
    except ObjectLostError as error:
        print("the table is lost:", type(error).__name__)
    print("new object:", client.submit(sum, client.send_object([1, 2, 3])).result())
