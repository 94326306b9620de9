"""Run a graph inside a task: its shape can depend on the result of an earlier task.

Prints::

    3 parts, 20 lines
"""

from scaler import Client, SchedulerClusterCombo


def find_parts():
    """Simulates a directory listing, which is unknown until the program runs."""
    return {"january": 4, "february": 7, "march": 9}


def read(length):
    return ["a line"] * length


def report(lengths):
    return f"{len(lengths)} parts, {sum(lengths)} lines"


def count_parts(parts):
    graph = {}
    for name, length in parts.items():
        graph[("read", name)] = (read, length)
        graph[("count", name)] = (len, ("read", name))
    graph["report"] = (report, [("count", name) for name in parts])
    return Client().get(graph, keys=["report"])["report"]


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    print(client.submit(count_parts, client.submit(find_parts)).result())
