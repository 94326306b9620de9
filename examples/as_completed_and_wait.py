"""Use the standard library to wait for the first result, for results as they complete, or with a timeout.

Prints::

    answered by: near
    prices requested: 3, best: 97.0
    not done after 0.1 s: 1
"""

import threading
from concurrent.futures import FIRST_COMPLETED, as_completed, wait

from scaler import Client, SchedulerClusterCombo


def ask(mirror):
    """Simulates servers, some of which never answer."""
    if mirror != "near":
        threading.Event().wait()
    return mirror


def price(shop):
    return {"corner": 98.5, "market": 97.0, "online": 97.0}[shop]


with SchedulerClusterCombo(n_workers=3) as cluster, Client(address=cluster.get_address()) as client:
    done, others = wait([client.submit(ask, name) for name in ("far", "near", "away")], return_when=FIRST_COMPLETED)
    print("answered by:", *(future.result() for future in done))
    for future in others:
        future.cancel()

    best = float("inf")
    asked = [client.submit(price, shop) for shop in ("corner", "market", "online")]
    for future in as_completed(asked, timeout=30):  # in order of completion
        best = min(best, future.result())
    print(f"prices requested: {len(asked)}, best: {best}")

    lost = client.submit(ask, "far")
    print("not done after 0.1 s:", len(wait([lost], timeout=0.1).not_done))
