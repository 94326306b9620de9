"""Create a client inside a task: there, Client() without an address submits to the cluster that runs the task.

Prints::

    {'north': 3, 'south': 7}
"""

from scaler import Client, SchedulerClusterCombo


def count_orders(page):
    return len(page)


def count_region(pages):
    with Client() as client:
        return sum(client.map(count_orders, pages))


REGIONS = {"north": [["a", "b"], ["c"]], "south": [["d", "e", "f"], ["g"], ["h", "i", "j"]]}

with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    futures = {region: client.submit(count_region, pages) for region, pages in REGIONS.items()}
    print({region: future.result() for region, future in futures.items()})
