"""Run a graph of dependent calls: a dict of values and (callable, key, ...) tuples.

Only nodes that the requested keys need run, each once. Values pass between tasks without a detour through the client.

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
