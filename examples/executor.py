"""Run code written for concurrent.futures: ScalerExecutor replaces its executors.

Prints::

    square roots: 1.00, 1.41, 1.73
    cosine: 0.54
    shut down: RuntimeError
"""

import concurrent.futures
import math

from scaler import ScalerExecutor, SchedulerClusterCombo


def report(executor: concurrent.futures.Executor):
    """Does not depend on Scaler: accepts a ThreadPoolExecutor, a ProcessPoolExecutor, or any other executor."""
    roots = executor.map(math.sqrt, [1, 2, 3], timeout=30, chunksize=2)
    print("square roots:", ", ".join(f"{root:.2f}" for root in roots))

    future = executor.submit(math.cos, 1)
    concurrent.futures.wait([future])
    print(f"cosine: {future.result():.2f}")


with SchedulerClusterCombo(n_workers=2) as cluster:
    with ScalerExecutor(address=cluster.get_address()) as executor:  # or ScalerExecutor(client)
        report(executor)
    try:
        executor.submit(math.cos, 1)
    except RuntimeError:
        print("shut down: RuntimeError")
