"""Take the first answer, take answers as they come, or wait with a timeout: with the tools of the standard library.

Prints::

    answered by: near
    prices asked for: 3, best: 97.0
    not done after 0.1 s: 1
"""

import threading
from concurrent.futures import FIRST_COMPLETED, as_completed, wait

from scaler import Client, SchedulerClusterCombo


def ask(mirror):
    """Stands for servers of which some do not answer."""
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
    for future in as_completed(asked, timeout=30):  # in the order in which they end, whichever that is
        best = min(best, future.result())
    print(f"prices asked for: {len(asked)}, best: {best}")

    lost = client.submit(ask, "far")
    print("not done after 0.1 s:", len(wait([lost], timeout=0.1).not_done))
