"""Measures the cost of the sampling profiler: the same tasks with and without it, as a ratio.

Run `python benchmarks/profiling.py [ROUNDS]`. Two clusters with one worker each, one with
`profile_interval_seconds=0`, alternate, because both then see the same load. Figures are medians of the rounds. long:
CPU time of one task that computes. short: time until all of many no-ops have ended.
"""

from __future__ import annotations

import statistics
import sys
import time

from scaler import Client, SchedulerClusterCombo

LONG_ADDITIONS = 12_000_000
SHORT_TASKS = 20_000


def compute(count: int) -> float:
    """Compute, and return the CPU time of the whole process, which includes the sampler."""
    began = time.process_time()
    total = 0
    for number in range(count):
        total += number & 7
    return time.process_time() - began


def nothing(number: int) -> int:
    return number


def long_seconds(client: Client) -> float:
    seconds: float = client.submit(compute, LONG_ADDITIONS).result()
    return seconds


def short_seconds(client: Client) -> float:
    began = time.perf_counter()
    for future in [client.submit(nothing, number) for number in range(SHORT_TASKS)]:
        future.result()
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with (
        SchedulerClusterCombo(n_workers=1, profile_interval_seconds=0.0) as off,
        SchedulerClusterCombo(n_workers=1) as on,
        Client(off.get_address()) as without,
        Client(on.get_address()) as sampled,
    ):
        for name, measure in (("long", long_seconds), ("short", short_seconds)):
            measure(without), measure(sampled)
            figures: dict[str, list[float]] = {"off": [], "on": []}
            for number in range(rounds):
                order = [("off", without), ("on", sampled)]
                for key, client in order if number % 2 else reversed(order):
                    figures[key].append(measure(client))
            ratios = sorted(on / off for on, off in zip(figures["on"], figures["off"], strict=True))
            ratio = statistics.median(figures["on"]) / statistics.median(figures["off"])
            half = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
            print(
                f"{name}: off {statistics.median(figures['off']):.4f} s, on {statistics.median(figures['on']):.4f} s, "
                f"ratio {ratio:.4f} (of single rounds, half from {half[0]:.4f} to {half[1]:.4f})"
            )


if __name__ == "__main__":
    main()
