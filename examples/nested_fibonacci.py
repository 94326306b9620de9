"""Submit tasks from tasks: a client can be a task's argument.

A task that waits for other tasks frees its slot, so the recursion can be deeper than the number of workers.

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
