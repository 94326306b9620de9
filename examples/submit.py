"""Submit single calls, and get their results from futures.

Prints::

    15
    661.46
    division by zero
"""

import math

from scaler import Client


def add(left, right=0):
    return left + right


def divide(left, right):
    return left / right


with Client() as client:
    print(client.submit(add, 10, right=5).result())

    futures = [client.submit(math.sqrt, value) for value in range(100)]
    print(f"{sum(future.result() for future in futures):.2f}")

    try:
        client.submit(divide, 1, 0).result()
    except ZeroDivisionError as error:  # the task's own exception, with its remote traceback
        print(error)
