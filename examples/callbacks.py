"""Call a function when a task ends, whatever its outcome. A callback may submit tasks, but must not wait for them.

Callbacks run in one of the client's threads, so protect shared data with a lock or a queue.

Prints::

    could not read dog.jpg
    resized cat.jpg
    uploaded cat.jpg
"""

import queue

from scaler import Client, SchedulerClusterCombo


def resize(name):
    if name == "dog.jpg":
        raise OSError(f"could not read {name}")
    return f"resized {name}"


def upload(name):
    return f"uploaded {name}"


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    messages = queue.SimpleQueue()

    def resized(future):
        error = future.exception()
        messages.put(str(error) if error else future.result())
        if error is None:
            name = future.result().removeprefix("resized ")
            client.submit(upload, name).add_done_callback(lambda uploaded: messages.put(uploaded.result()))

    for name in ("cat.jpg", "dog.jpg"):
        client.submit(resize, name).add_done_callback(resized)

    for message in sorted(messages.get(timeout=30) for _ in range(3)):
        print(message)
