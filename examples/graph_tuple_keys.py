"""Use tuples as keys in a graph, as Dask does for the parts of a table: (name, part).

A list of keys becomes a list of their values. A computation nested in another one runs as part of it.

Prints::

    {'total': 99, 'even': 2}
    {('sum', 0): 3, ('sum', 2): 63}
"""

from scaler import Client, SchedulerClusterCombo


def load(part):
    return [part * 10 + row for row in range(3)]


def keep_even(rows):
    return [row for row in rows if row % 2 == 0]


PARTS = 3
graph = {("load", part): (load, part) for part in range(PARTS)}
graph |= {("sum", part): (sum, ("load", part)) for part in range(PARTS)}
graph["even"] = (sum, (keep_even, ("load", 0)))
graph["total"] = (sum, [("sum", part) for part in range(PARTS)])

with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    print(client.get(graph, keys=["total", "even"]))
    futures = client.get(graph, keys=[("sum", 0), ("sum", 2)], block=False)
    print({key: future.result() for key, future in futures.items()})
