"""Inspect tasks: why a task waits, how a task ended, and what it printed.

Prints::

    no worker offers gpu=2, and no worker manager could start one that does: ...
    it ended ... on worker ..., and took ...
    step 1: loss 0.5
    step 2: loss 0.25
    it raised ValueError: the loss is not a number, ..., in attempt 1
    --- stderr ---
    step 3: loss nan
"""

import math
import sys

from scaler import Client, SchedulerClusterCombo


def train(losses):
    for step, loss in enumerate(losses, 1):
        print(f"step {step}: loss {loss}")
    return losses[-1]


def check(step, loss):
    print(f"step {step}: loss {loss}", file=sys.stderr)
    if math.isnan(loss):
        raise ValueError("the loss is not a number")


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    # A task that no worker can run waits. explain names the missing capability.
    waiting = client.submit_verbose(train, ([0.5],), capabilities={"gpu": 2})
    print(client.explain(waiting))
    waiting.cancel()

    future = client.submit(train, [0.5, 0.25])
    future.result()
    print(client.explain(future))
    print(client.logs(future), end="")

    future = client.submit(check, 3, float("nan"))
    future.exception()
    print(client.explain(future))
    print(client.logs(future), end="")  # .stdout and .stderr have the separate streams
