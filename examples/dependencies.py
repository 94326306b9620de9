"""Pass a future to another task, which waits for it and receives its value without a detour through the client.

Futures can be nested anywhere in the arguments. If a task fails, tasks that need its value fail with its exception.

Prints::

    {'Oslo': 4.0, 'Rome': 21.0}
    warmest: Rome
    no readings from Atlantis
"""

from scaler import Client, SchedulerClusterCombo

READINGS = {"Oslo": [3.0, 4.0, 5.0], "Rome": [19.0, 21.0, 23.0]}


def read(city):
    if city not in READINGS:
        raise LookupError(f"no readings from {city}")
    return READINGS[city]


def mean(values):
    return sum(values) / len(values)


def warmest(means):
    return max(means, key=means.get)


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    # Nothing here waits: all tasks are submitted before the first one has ended.
    means = {city: client.submit(mean, client.submit(read, city)) for city in READINGS}
    winner = client.submit(warmest, means)

    print({city: future.result() for city, future in means.items()})
    print("warmest:", winner.result())

    try:
        client.submit(mean, client.submit(read, "Atlantis")).result()
    except LookupError as error:
        print(error)
