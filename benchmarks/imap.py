"""Results one by one: `imap` relative to `multiprocessing.Pool`, and the effect of window sizes.

Each side has two workers. The two alternate, because load from other programs then affects both. Figures are medians.

    python benchmarks/imap.py [--rounds 5] [--items 50000]
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator

from scaler import Client, SchedulerClusterCombo

WORKERS = 2
POOL_CHUNK = 500
"""Without chunks, the pool takes ten times as long."""
WINDOWS = (16, 64, 512, 4096, 32_768, None)


def identity(value: int) -> int:
    return value


def rate(results: Iterator[int], items: int) -> float:
    begin = time.perf_counter()
    taken = sorted(itertools.islice(results, items))
    seconds = time.perf_counter() - begin
    if taken != list(range(items)):
        raise SystemExit("wrong results")
    return items / seconds


def first_ms(make: Callable[[], Iterator[int]]) -> float:
    begin = time.perf_counter()
    next(make())
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--items", type=int, default=50_000)
    arguments = parser.parse_args()
    items = arguments.items

    figures: dict[str, list[tuple[float, float]]] = {}
    windows: dict[int | None, list[float]] = {}
    with (
        multiprocessing.get_context("spawn").Pool(WORKERS) as pool,
        SchedulerClusterCombo(n_workers=WORKERS) as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        client.map(identity, range(100))
        pool.map(identity, range(100))
        for _ in range(arguments.rounds):
            rows = {
                f"imap_unordered of {items:,}, items/s": (
                    rate(client.imap_unordered(identity, range(items)), items),
                    rate(pool.imap_unordered(identity, range(items), chunksize=POOL_CHUNK), items),
                ),
                f"imap of {items:,}, items/s": (
                    rate(client.imap(identity, range(items)), items),
                    rate(pool.imap(identity, range(items), chunksize=POOL_CHUNK), items),
                ),
                "first result, ms": (
                    first_ms(lambda: client.imap(identity, range(100))),
                    first_ms(lambda: pool.imap(identity, range(100))),
                ),
            }
            for name, pair in rows.items():
                figures.setdefault(name, []).append(pair)
            for window in WINDOWS:
                measured = rate(client.imap(identity, itertools.count(), window=window), items)
                windows.setdefault(window, []).append(measured)

    print("| | scaler | multiprocessing.Pool | ratio |\n|---|---|---|---|")
    for name, pairs in figures.items():
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        shown = "{:,.2f}" if ours < 100 else "{:,.0f}"
        print(f"| {name} | {shown.format(ours)} | {shown.format(theirs)} | {ours / theirs:.2f} |")
    print("\n| window | items/s |\n|---|---|")
    for window, rates in windows.items():
        print(f"| {'default' if window is None else f'{window:,}'} | {statistics.median(rates):,.0f} |")


if __name__ == "__main__":
    main()
