"""Send a large object once and use it in many tasks.

Prints::

    [0, 250000, 500000, 750000]
    2000000
"""

from scaler import Client, SchedulerClusterCombo


def item(table, index):
    return table[index]


def total_length(tables):
    return sum(len(table) for table in tables)


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    table = client.send_object(list(range(1_000_000)), name="table")

    print([client.submit(item, table, index).result() for index in range(0, 1_000_000, 250_000)])
    print(client.submit(total_length, [table, table]).result())  # can be nested in other arguments
