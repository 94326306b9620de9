"""Show a progress bar while a map runs. The bar goes to stderr.

Prints::

    338350
"""

from scaler import Client, SchedulerClusterCombo


def square(value):
    return value * value


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    print(sum(client.map(square, range(101), progress=True)))
