"""Call one function with many arguments. Results are in the order of the arguments.

Prints::

    [0, 1, 4, 9, 16]
    [11, 22, 33]
    [1, 8, 81]
    [2.0, None, 1.0]
"""

from scaler import Client, SchedulerClusterCombo


def square(value):
    return value * value


def add(left, right):
    return left + right


def power(base, exponent):
    return base**exponent


def half_of_even(value):
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value / 2


with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
    print(client.map(square, range(5)))
    print(client.map(add, [1, 2, 3], [10, 20, 30]))
    print(client.starmap(power, [(1, 5), (2, 3), (3, 4)]))

    results = client.map(half_of_even, [4, 3, 2], return_exceptions=True)
    print([None if isinstance(result, ValueError) else result for result in results])
