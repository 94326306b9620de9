"""A tour of the client on a running cluster: submit, map with a progress bar, starmap, and a graph.

Start `scaler config/local.toml` in another terminal first, or run `make demo`, which does both.
"""

import sys
import time

from scaler import Client

TASKS = 10_000
BLOCK = 2_000


def square(value: int) -> int:
    return value * value


def power(base: int, exponent: int) -> int:
    return base**exponent


def count_primes(start: int) -> int:
    """Count the primes among BLOCK numbers, beginning with start."""
    numbers = range(max(start, 2), start + BLOCK)
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in numbers)


def add(left: int, right: int) -> int:
    return left + right


def main(address: str) -> None:
    with Client(address=address) as client:
        print("submit:  square(12) =", client.submit(square, 12).result())

        counts = client.map(count_primes, range(0, 400_000, BLOCK), progress=True)
        print("map:     primes below 400,000 =", sum(counts))

        print("starmap: powers of two =", client.starmap(power, [(2, exponent) for exponent in range(10)]))

        graph = {"a": 3, "b": (square, "a"), "c": (square, "b"), "total": (add, "b", "c")}
        print("graph:   3^2 + 3^4 =", client.get(graph, keys=["total"])["total"])

        begin = time.perf_counter()
        futures = [client.submit(square, value) for value in range(TASKS)]
        results = [future.result() for future in futures]
        seconds = time.perf_counter() - begin
        if results != [square(value) for value in range(TASKS)]:
            raise SystemExit("the results of submit are wrong")
        print(f"speed:   {TASKS:,} tasks submitted one by one in {seconds:.2f} s: {TASKS / seconds:,.0f} tasks/s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:8516")
