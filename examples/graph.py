"""Run a graph of calls that depend on each other: a dict of values and of (callable, key, ...) tuples.

Only what the wanted keys need is run, each node once, and values go from task to task without passing the client.

Prints::

    {'e': 1}
    {'a': 2, 'd': 4}
"""

from scaler import Client, SchedulerClusterCombo


def increment(value):
    return value + 1


def add(left, right):
    return left + right


def subtract(left, right):
    return left - right


graph = {
    "a": 2,
    "b": 2,
    "c": (increment, "a"),  # 2 + 1 = 3
    "d": (add, "a", "b"),  # 2 + 2 = 4
    "e": (subtract, "d", "c"),  # 4 - 3 = 1
}

with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    print(client.get(graph, keys=["e"]))
    print(client.get(graph, keys=["a", "d"]))
