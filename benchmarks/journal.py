"""Measures the cost of a journal: a plain file, SQLite, and LMDB, then a cluster with and without a journal.

Run `python benchmarks/journal.py [--rounds 3] [--directory PATH]`, with a directory on the disk to measure. LMDB is
included if the package `lmdb` is installed. Variants alternate, and each figure is the best of all rounds, because
other programs only slow a round down.

A record stands for one step of the scheduler, and counts once the disk has confirmed it. In the first column, each
record waits for the previous one. In the others, records arrive as fast as the store accepts them, and records that
arrive during a confirmation share the next one. CPU is the time of all threads, per record.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import queue
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import machine
from scaler import Client, SchedulerClusterCombo
from scaler.journal.journal import SEGMENT_BYTES, Journal

LMDB = importlib.import_module("lmdb") if importlib.util.find_spec("lmdb") else None

LONE, SMALL, LARGE = 200, 20_000, 1_000
"""Number of records in each column."""
SMALL_BYTES, LARGE_BYTES = 300, 50_000
"""Sizes of a single task's record and of a batch of 500."""
TASKS, ROUND_TRIPS = 20_000, 500


class Store(Protocol):
    """Accepts records, and counts those that the disk has confirmed."""

    def append(self, body: bytes) -> None: ...

    @property
    def durable(self) -> int: ...

    def close(self) -> None: ...


class Database:
    """Commits to a database as the journal does. Commits a single record in the caller's thread, because switching
    threads takes longer than the disk. Otherwise a thread commits all records that have arrived, together.
    """

    def __init__(self, commit: Callable[[int, list[bytes]], None]) -> None:
        self.durable = 0
        self._commit = commit
        self._taken = 0
        self._pending: list[bytes] = []
        self._queue: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def append(self, body: bytes) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._take)
        self._pending.append(body)

    def close(self) -> None:
        self._queue.put([])
        self._thread.join()

    def _take(self) -> None:
        bodies, self._pending = self._pending, []
        is_lone = len(bodies) == 1 and self.durable == self._taken
        self._taken += len(bodies)
        if is_lone:
            self._write(bodies)
        else:
            self._queue.put(bodies)

    def _write(self, bodies: list[bytes]) -> None:
        self._commit(self.durable, bodies)
        self.durable += len(bodies)

    def _run(self) -> None:
        while bodies := self._queue.get():
            while not self._queue.empty():
                bodies += self._queue.get()
            self._write(bodies)


def open_sqlite(directory: Path) -> Callable[[int, list[bytes]], None]:
    """Open SQLite with a log preallocated to the size of a journal segment.

    A growing log would cost a file system change per commit. Checkpoints and compaction are both off.
    """
    database = sqlite3.connect(directory / "journal.sqlite", isolation_level=None, check_same_thread=False)
    for pragma in ("page_size=65536", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
        database.execute(f"PRAGMA {pragma}")
    database.execute("CREATE TABLE records (number INTEGER PRIMARY KEY, body BLOB)")

    def commit(first: int, bodies: list[bytes]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT INTO records VALUES (?, ?)", enumerate(bodies, first))
        database.execute("COMMIT")

    commit(0, [bytes(LARGE_BYTES)] * (SEGMENT_BYTES // LARGE_BYTES))
    database.execute("DELETE FROM records")
    database.execute("PRAGMA wal_checkpoint(RESTART)")
    return commit


def open_lmdb(directory: Path) -> Callable[[int, list[bytes]], None]:
    assert LMDB is not None
    database = LMDB.open(str(directory / "lmdb"), map_size=1 << 32)

    def commit(first: int, bodies: list[bytes]) -> None:
        with database.begin(write=True) as transaction:
            for number, body in enumerate(bodies, first):
                transaction.put(number.to_bytes(8, "big"), body, append=True)

    return commit


def open_file(directory: Path) -> Store:
    journal = Journal(directory / "journal", "none", lambda: None, compact_bytes=1 << 40)
    assert not list(journal.recover())
    return journal


STORES: dict[str, Callable[[Path], Store]] = {
    "a file": open_file,
    "SQLite, grown WAL, synchronous=FULL": lambda directory: Database(open_sqlite(directory)),
}
if LMDB is not None:
    STORES["LMDB"] = lambda directory: Database(open_lmdb(directory))


async def confirmed(store: Store, count: int) -> None:
    while store.durable < count:  # noqa: ASYNC110 (a database's thread sends no event)
        await asyncio.sleep(0.0001)


async def measure(opened: Callable[[Path], Store], directory: Path) -> list[float]:
    """Return ms per single record, small records/s with us of CPU each, and MB/s of large records with us of CPU."""
    figures: list[float] = []
    with tempfile.TemporaryDirectory(dir=directory) as name:
        store = opened(Path(name))
        began = time.perf_counter()
        for number in range(1, LONE + 1):
            store.append(os.urandom(SMALL_BYTES))
            await confirmed(store, number)
        figures.append((time.perf_counter() - began) / LONE * 1e3)
        count = LONE
        for records, size in ((SMALL, SMALL_BYTES), (LARGE, LARGE_BYTES)):
            body = os.urandom(size)
            began, cpu = time.perf_counter(), time.process_time()
            for number in range(records):
                store.append(body)
                if number % 10 == 0:
                    await asyncio.sleep(0)
            count += records
            await confirmed(store, count)
            rate = records / (time.perf_counter() - began)
            cpu = time.process_time() - cpu
            figures += [rate if size == SMALL_BYTES else rate * size / 1e6, cpu / records * 1e6]
        store.close()
    return figures


def no_op(number: int) -> int:
    return number


def cluster(state_directory: str) -> list[float]:
    """Return tasks/s from submit to result, and ms per round trip."""
    with (
        SchedulerClusterCombo(n_workers=2, state_directory=state_directory) as combo,
        Client(combo.get_address()) as client,
    ):
        client.map(no_op, range(1_000))
        began = time.perf_counter()
        futures = [client.submit(no_op, number) for number in range(TASKS)]
        assert [future.result() for future in futures] == list(range(TASKS))
        rate = TASKS / (time.perf_counter() - began)
        began = time.perf_counter()
        for number in range(ROUND_TRIPS):
            client.submit(no_op, number).result()
        return [rate, (time.perf_counter() - began) / ROUND_TRIPS * 1e3]


def best(rounds: list[list[float]], is_higher_better: list[bool]) -> list[float]:
    columns = zip(*rounds, strict=True)
    return [max(each) if higher else min(each) for each, higher in zip(columns, is_higher_better, strict=True)]


def numbers(values: list[float]) -> list[str]:
    return [f"{value:,.2f}" for value in values]


def table(rows: list[list[str]]) -> str:
    first, *others = rows
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (first, ["---"] * len(first), *others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    print(machine(options.rounds).replace("Medians", "Best"))
    found: dict[str, list[list[float]]] = {name: [] for name in STORES}
    clusters: dict[str, list[list[float]]] = {"without": [], "with": []}
    for _ in range(options.rounds):
        for name, opened in STORES.items():
            found[name].append(asyncio.run(measure(opened, options.directory)))
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            clusters["without"].append(cluster(""))
            clusters["with"].append(cluster(directory))
    heads = ["", "lone, ms", "small/s", "CPU, us", "large, MB/s", "CPU, us"]
    higher = [False, True, False, True, False]
    print(table([heads, *([name, *numbers(best(rows, higher))] for name, rows in found.items())]))
    heads = ["state_directory", "no-ops by `submit`/s", "round trip, ms"]
    print(table([heads, *([name, *numbers(best(rows, [True, False]))] for name, rows in clusters.items())]))


if __name__ == "__main__":
    main()
