"""Show a progress bar for a map or an imap on stderr, with the number of failed items.

Prints::

    338350
    first result: 0
    all other results: 338350
    2 of 5 items failed
"""

from scaler import Client, SchedulerClusterCombo


def square(value):
    return value * value


def inverse(value):
    return 1 / value


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    print(sum(client.map(square, range(101), progress=True)))

    # The bar counts finished items, including those not yet returned by next().
    results = client.imap(square, range(101), progress=True)
    print("first result:", next(results))
    print("all other results:", sum(results))

    items = client.map(inverse, [1, 0, 2, 0, 4], return_exceptions=True, progress=True)
    print(sum(isinstance(item, Exception) for item in items), "of 5 items failed")
