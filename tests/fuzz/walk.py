"""Runs targets with random mutations and without coverage: the short form, with its memory usage.

`python -m tests.fuzz.walk SHARE SEED TARGET ...` prints messages, seconds, and peak memory by target, as JSON.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice
from random import Random

from tests.fuzz.targets import TARGETS, Target


class FoundError(Exception):
    """An input on which a target fails."""


def walk(target: Target, inputs: int, seed: int) -> int:
    """Run this number of mutated inputs, and return their messages. Raises FoundError if a target fails."""
    messages = 0
    for data in islice(mutated(target, seed), inputs):
        try:
            messages += target.run(data)
        except Exception as error:
            raise FoundError(f"{target.name}: {error!r} from the input {data.hex()}") from error
    return messages


def mutated(target: Target, seed: int) -> Iterator[bytes]:
    """Yield mutated inputs of a target endlessly."""
    random = Random(f"{target.name}-{seed}")
    seeds = target.seeds()
    while True:
        yield target.mutate(random, seeds[random.randrange(len(seeds))])


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    share, seed, *names = sys.argv[1:]
    report = {}
    for name in names or TARGETS:
        target = TARGETS[name]
        for data in target.seeds():
            target.run(data)
        gc.collect()
        before, began = peak_bytes(), time.perf_counter()
        messages = walk(target, round(float(share) * target.share), int(seed))
        report[name] = {
            "messages": messages,
            "seconds": round(time.perf_counter() - began, 2),
            "grown_bytes": peak_bytes() - before,
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
