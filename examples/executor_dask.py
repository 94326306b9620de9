"""Pass an executor to a library that accepts one: here, Dask computes its graph on Scaler's workers.

Prints::

    revenue: 132.0
    ran in other processes: True
"""

import os

import dask

from scaler import ScalerExecutor, SchedulerClusterCombo


@dask.delayed
def orders(region):
    return {"north": [10.0, 20.0], "south": [30.0, 50.0]}[region], os.getpid()


@dask.delayed
def revenue(parts):
    return sum(sum(amounts) for amounts, _ in parts) * 1.2, {process for _, process in parts}


with SchedulerClusterCombo(n_workers=2) as cluster, ScalerExecutor(address=cluster.get_address()) as executor:
    total, processes = revenue([orders("north"), orders("south")]).compute(scheduler=executor)
    print("revenue:", total)
    print("ran in other processes:", os.getpid() not in processes)
