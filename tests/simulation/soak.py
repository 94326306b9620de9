"""Runs thousands of simulated worlds on all cores: `python -m tests.simulation.soak --seeds 10000`.

Seeds are assigned to the kinds of worlds in turn. Prints the failing seeds, and the totals of all worlds. To run a
failed seed alone, use `--kind NAME --first SEED --seeds 1`.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter

from tests.simulation.worlds import KINDS

NICENESS = 10


def run(name: str, seed: int) -> tuple[str, int, Counter[str], str]:
    """Run one world. Returns its kind, seed, and events, and its failure or an empty string."""
    before = time.process_time()
    try:
        report = KINDS[name](seed)
    except Exception as error:  # noqa: BLE001 (every exception is a finding of this seed)
        return name, seed, Counter(), f"{type(error).__name__}: {error}"
    found = report.happened + Counter(
        {
            "tasks": sum(report.outcomes.values()),
            "connections broken": report.breaks,
            "workers lost": report.worker_losses,
            "clients lost": report.client_losses,
            "simulated seconds": round(report.simulated_seconds),
            "milliseconds of CPU": round(1000 * (time.process_time() - before)),
        }
    )
    return name, seed, found, ""


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sends SIGTERM instead
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # exits normally, which removes files
    os.nice(NICENESS)
    logging.disable()  # full disks would log many errors


def main() -> int:
    """Run all worlds until Ctrl-C. Returns 0 if none failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10_000, help="number of worlds (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--kind", choices=KINDS, help="only worlds of this kind")
    arguments = parser.parse_args()
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    worlds = [(kinds[number % len(kinds)], arguments.first + number) for number in range(arguments.seeds)]
    total: dict[str, Counter[str]] = {name: Counter() for name in kinds}
    failures = 0
    os.environ["PYTHONHASHSEED"] = "0"  # fixes the order of sets in new processes
    done = 0
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, _begin) as pool:
        try:
            for name, seed, found, why in pool.imap_unordered(_run, worlds, chunksize=4):
                done += 1
                total[name] += found
                total[name]["worlds"] += 1
                if done % 1000 == 0:
                    print(f"{done:,} worlds", flush=True)
                if why:
                    failures += 1
                    print(f"{name}, seed {seed}: {why}", flush=True)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name, counts in total.items():
        print(f"{name}: " + ", ".join(f"{key} {count:,}" for key, count in sorted(counts.items())))
    print(f"{done:,} worlds, {failures} failed")
    return int(failures > 0)


def _run(world: tuple[str, int]) -> tuple[str, int, Counter[str], str]:
    return run(*world)


if __name__ == "__main__":
    sys.exit(main())
