"""Share one client between threads, each of which submits tasks and waits for results independently.

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
        """Simulates a request to a server that runs each request in a separate thread."""
        prices = [client.submit(price, item) for item in range(first, first + 10)]
        return f"{customer}: {sum(future.result() for future in prices)}"

    with ThreadPoolExecutor() as threads:
        for answer in threads.map(serve, ["ann", "bob", "eve"], [0, 10, 20]):
            print(answer)
