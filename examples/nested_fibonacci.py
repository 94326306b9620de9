"""Tasks that submit tasks: a client may be an argument of a task.

A task that waits for others lends its place to them, so the recursion is deeper than there are workers.

Prints::

    21
"""

from scaler import Client, SchedulerClusterCombo


def fibonacci(client: Client, n: int) -> int:
    if n < 2:
        return n
    first = client.submit(fibonacci, client, n - 1)
    second = client.submit(fibonacci, client, n - 2)
    return first.result() + second.result()


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    print(client.submit(fibonacci, client, 8).result())
