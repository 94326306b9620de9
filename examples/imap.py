"""Iterate over results in order, from an endless stream of items: only a window of items is in progress.

A failed item raises its exception at its position, and you can continue with the items after it. Closing the iterator
cancels the remaining items.

Prints::

    first prime above 1,000,000: 1000003
    items read from the endless stream: fewer than 1,000
    kettle: 95.0
    toaster: ValueError: 'hot' is not a number
    oven: 180.0
"""

import itertools

from scaler import Client, SchedulerClusterCombo


def is_prime(number):
    return number, all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def read(line):
    name, value = line.split("=")
    if not value.isdigit():
        raise ValueError(f"{value!r} is not a number")
    return f"{name}: {float(value)}"


def counted(items):
    for item in items:
        counted.total += 1
        yield item


counted.total = 0

with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    numbers = client.imap(is_prime, counted(itertools.count(1_000_001, 2)))
    print("first prime above 1,000,000:", next(number for number, prime in numbers if prime))
    numbers.close()
    print("items read from the endless stream:", "fewer than 1,000" if counted.total < 1_000 else counted.total)

    lines = ["kettle=95", "toaster=hot", "oven=180"]
    results = client.imap(read, lines)
    for line in lines:
        try:
            print(next(results))
        except ValueError as error:
            print(f"{line.partition('=')[0]}: {type(error).__name__}: {error}")
