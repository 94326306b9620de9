"""See each kind of failure. A failing task does not affect other tasks, and the client remains usable.

Prints::

    ZeroDivisionError: division by zero
      File "...errors.py", line ..., in margin
    TaskTimeoutError: the task ran longer than its time limit of 0.2 s and was stopped
    ProcessorDiedError: killed by signal 9 (SIGKILL), with at most ..., 1 attempt on ..., retries=0; it may have run
    SerializationError: the result is a generator: client.stream(fn, ...) iterates over its values
    SerializationError: argument 1 of len (_thread.lock) cannot be serialized: ...
    UsageError: a task's function must be callable, and 'margin' is not
    still works: 0.5
"""

import os
import signal
import threading

from scaler import Client, SchedulerClusterCombo
from scaler.errors import ProcessorDiedError, SerializationError, TaskTimeoutError, UsageError


def margin(profit, sales):
    return profit / sales


def wait_for_ever():
    threading.Event().wait()


def use_all_memory():
    """Simulates running out of memory, when the system kills the process with this signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def read_log(lines):
    return (line for line in range(lines))  # a generator cannot be pickled; a list can


def show(error):
    print(f"{type(error).__name__}: {error}")


with SchedulerClusterCombo(n_workers=1) as cluster, Client(address=cluster.get_address()) as client:
    try:
        client.submit(margin, 10, 0).result()
    except ZeroDivisionError as error:  # the task's exception; its cause has the worker's traceback
        show(error)
        print(next(line for line in str(error.__cause__).splitlines() if line.endswith("in margin")))

    try:
        client.submit_verbose(wait_for_ever, timeout_seconds=0.2).result()
    except TaskTimeoutError as error:
        show(error)

    try:
        client.submit_verbose(use_all_memory, retries=0).result()  # the default is 3
    except ProcessorDiedError as error:
        show(error)

    try:
        client.submit(read_log, 3).result()
    except SerializationError as error:
        show(error)

    # submit rejects errors that it can detect immediately.
    for function, argument in ((len, threading.Lock()), ("margin", 10)):
        try:
            client.submit(function, argument)
        except (SerializationError, UsageError) as error:
            show(error)

    print("still works:", client.submit(margin, 10, 20).result())
