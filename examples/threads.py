"""Share one client between threads: each submits and waits on its own.

Prints::

    ann: 55
    bob: 155
    eve: 255
"""

from concurrent.futures import ThreadPoolExecutor

from scaler import Client, SchedulerClusterCombo


def price(item):
    return item + 1


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:

    def serve(customer, first):
        """Stands for a request to a server of which each runs in a thread of its own."""
        prices = [client.submit(price, item) for item in range(first, first + 10)]
        return f"{customer}: {sum(future.result() for future in prices)}"

    with ThreadPoolExecutor() as threads:
        for answer in threads.map(serve, ["ann", "bob", "eve"], [0, 10, 20]):
            print(answer)
