"""Declare what workers offer and what tasks need: a name is a label, and name=number is an amount.

Prints::

    needs gpu=1: runs
    needs gpu=8: waits, no worker offers it
"""

from scaler import Client, SchedulerClusterCombo


def answer():
    return "runs"


with (
    SchedulerClusterCombo(n_workers=1, per_worker_capabilities="linux,gpu=2") as cluster,
    Client(address=cluster.get_address()) as client,
):
    small = client.submit_verbose(answer, (), {}, capabilities={"linux": None, "gpu": 1})
    print("needs gpu=1:", small.result())

    large = client.submit_verbose(answer, (), {}, capabilities={"gpu": 8})
    try:
        large.result(timeout=0.5)
    except TimeoutError:
        print("needs gpu=8: waits, no worker offers it")
    large.cancel()
