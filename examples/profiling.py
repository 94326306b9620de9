"""Measure a task's run time, CPU time, and peak memory.

Prints::

    sum: 499999500000
    took ... s, ... s of CPU time, ... MB at most
"""

from scaler import Client, SchedulerClusterCombo


def total(count):
    return sum(list(range(count)))


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    future = client.submit(total, 1_000_000, profiling=True)
    print("sum:", future.result())

    profile = future.profiling_info()
    print(
        f"took {profile.duration_s:.3f} s, {profile.cpu_time_s:.3f} s of CPU time, "
        f"{profile.peak_memory / 1e6:.0f} MB at most"
    )
