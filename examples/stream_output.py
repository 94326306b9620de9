"""See a task's output while it runs: its stdout and stderr appear on the client's, line by line.

Prints::

    step 1: loss 0.5000
    step 2: loss 0.2500
    step 3: loss 0.1250
    trained to 0.125
"""

from scaler import Client, SchedulerClusterCombo


def train(steps):
    loss = 1.0
    for step in range(1, steps + 1):
        loss /= 2
        print(f"step {step}: loss {loss:.4f}")
    return loss


# stream_output=True applies to all tasks of this client. submit_verbose accepts it for a single task.
with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address(), stream_output=True) as client:
    loss = client.submit(train, 3).result()
    print("trained to", loss)
