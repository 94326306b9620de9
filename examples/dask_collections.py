"""Compute Dask collections on a cluster: Dask plans the tasks, and Scaler runs them.

Prints::

    mean of the array: 49.5
    sums by key: {0: 20, 1: 25}
    delayed: 14
"""

import dask
import dask.array
import dask.dataframe
import pandas

import scaler

numbers = dask.array.arange(100, chunks=25)
table = dask.dataframe.from_pandas(pandas.DataFrame({"key": [0, 1] * 5, "value": range(10)}), npartitions=2)
squares = dask.delayed(sum)([dask.delayed(pow)(number, 2) for number in range(4)])

with scaler.SchedulerClusterCombo(n_workers=2) as cluster, scaler.Client(cluster.get_address()) as client:
    print("mean of the array:", numbers.mean().compute(scheduler=scaler.dask.get, client=client))
    sums = table.groupby("key").value.sum().compute(scheduler=scaler.dask.get, client=client)
    print("sums by key:", sums.to_dict())
    (total,) = dask.compute(squares, scheduler=scaler.dask.get, client=client)
    print("delayed:", total)
