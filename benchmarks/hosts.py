"""Counts the bytes between hosts for programs that run on several simulated hosts, with Scaler and with Dask.

    python benchmarks/hosts.py [--programs a,b] [--systems a,b] [--set chain.megabytes=200] [--json FILE] [--short]

A host is a network namespace on a common bridge (`tests/hosts.py`). This requires root or a Linux that permits user
namespaces. Elsewhere, a host is a group of processes with its own host name (`named_hosts.py`): for Scaler only, and
only for programs without a limited link. Scaler's client, scheduler, and object storage share the first host, which has
no workers. All other hosts have the same number of workers, and one key each. Install Dask with
`python benchmarks/peers.py dask`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.all import README, with_table
from benchmarks.host_runs import Arguments, Measured, RunFailedError, run_program
from benchmarks.machine import machine
from benchmarks.peers import interpreter, versions
from benchmarks.table import number
from tests.hosts import run_as_root, why_not

SYSTEMS = ("scaler", "dask")
BEGIN, END = "<!-- the hosts begin -->\n", "<!-- the hosts end -->\n"


@dataclass(frozen=True)
class Figure:
    """A number computed from a run. aim: upper limit, or None."""

    name: str
    of: Callable[[Measured], float]
    aim: float | None = None


@dataclass(frozen=True)
class Program:
    title: str
    """Text in which names of arguments in braces become their values."""
    figures: tuple[Figure, ...]
    full: Arguments
    """Arguments for the program with this name in `host_programs.py`."""
    short: Arguments
    limit_seconds: float = 240.0


def seconds(run: Measured) -> float:
    return run.seconds


def moved_megabytes(run: Measured) -> float:
    return run.moved_bytes() / 1e6


def share_moved(run: Measured) -> float:
    """Return the bytes moved, as a percentage of all arguments and results."""
    return moved_megabytes(run) / (2 * run.given["tasks"] * run.given["megabytes"]) * 100


def time_in_copies(run: Measured) -> float:
    """Return the time, as a multiple of the minimum to carry one copy over a limited link."""
    return run.seconds / (run.given["megabytes"] * 8 / run.given["megabits"])


def busiest_in_copies(run: Measured) -> float:
    return run.busiest_bytes() / 1e6 / run.given["megabytes"]


def busiest_of_mean(run: Measured) -> float:
    return run.busiest_bytes() / fmean(run.worker_links_bytes())


def copies(run: Measured) -> float:
    return moved_megabytes(run) / run.given["megabytes"]


MOVED = "MB between hosts"
SECONDS = Figure("s", seconds)

PROGRAMS = {
    "shared": Program(
        "{megabytes} MB from the client, used by {tasks} tasks on {slots} slots of another host",
        (Figure("copies on the link", copies, 1.01), Figure(MOVED, moved_megabytes), SECONDS),
        full={"hosts": 1, "slots": 4, "megabytes": 100, "tasks": 80},
        short={"hosts": 1, "slots": 2, "megabytes": 10, "tasks": 8},
    ),
    "stay": Program(
        "{arrays} arrays of {megabytes} MB made by tasks, each used by another task, {hosts} hosts of {slots} slots",
        (Figure(MOVED, moved_megabytes, 1), SECONDS),
        full={"hosts": 2, "slots": 4, "megabytes": 100, "arrays": 4},
        short={"hosts": 2, "slots": 2, "megabytes": 10, "arrays": 2},
    ),
    "broadcast": Program(
        "{megabytes} MB from the client to {hosts} hosts, links of {megabits} Mbit/s",
        (
            Figure("time, in copies at a link's full rate", time_in_copies, 2.5),
            Figure("busiest link, in copies", busiest_in_copies, 3),
            SECONDS,
        ),
        full={"hosts": 16, "slots": 1, "megabytes": 25, "megabits": 50},
        short={"hosts": 3, "slots": 1, "megabytes": 4, "megabits": 80},
    ),
    "chain": Program(
        "{tasks} tasks, each takes the {megabytes} MB that the previous one returned, {hosts} hosts",
        (Figure("moved, % of arguments and results", share_moved, 2), SECONDS),
        full={"hosts": 4, "slots": 1, "megabytes": 50, "tasks": 50},
        short={"hosts": 2, "slots": 1, "megabytes": 5, "tasks": 6},
    ),
    "shuffle": Program(
        "shuffle of {pieces} x {pieces} pieces of {kilobytes} kB, {hosts} hosts",
        (Figure("busiest link, relative to the mean", busiest_of_mean, 1.3), Figure(MOVED, moved_megabytes), SECONDS),
        full={"hosts": 8, "slots": 1, "kilobytes": 250, "pieces": 64},
        short={"hosts": 3, "slots": 1, "kilobytes": 100, "pieces": 6},
    ),
}


def median_run(runs: Sequence[Measured]) -> Measured:
    """Return the run with the median time."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


# -- tables

Results = Mapping[str, Mapping[str, Measured | str]]
"""Results by program and system: the measurement, or the reason for having none."""


def table(results: Results, arguments: Mapping[str, Arguments], systems: Sequence[str]) -> str:
    head = ["program", "figure", *systems, "aim", "holds"]
    lines = [head, ["---"] * len(head)]
    for name, found in results.items():
        program, given = PROGRAMS[name], arguments[name]
        for place, figure in enumerate(program.figures):
            cells = [cell(figure, found.get(system)) for system in systems]
            aim = "" if figure.aim is None else number(figure.aim)
            title = "" if place else program.title.format_map(given)
            lines.append([title, figure.name, *cells, aim, holds(figure, found.get("scaler"))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def cell(figure: Figure, run: Measured | str | None) -> str:
    if run is None:
        return "-"
    return "failed" if isinstance(run, str) else number(figure.of(run))


def holds(figure: Figure, run: Measured | str | None) -> str:
    if figure.aim is None or run is None:
        return ""
    if isinstance(run, str):
        return "no"
    return "yes" if figure.of(run) <= figure.aim else "no"


def link_table(found: Mapping[str, Measured | str]) -> str:
    """Return a table of the MB that each host sent and received over its link."""
    runs = {system: run for system, run in found.items() if isinstance(run, Measured)}
    head = ["link of", *(f"{system}: {way}" for system in runs for way in ("sent", "received"))]
    lines = [head, ["---"] * len(head)]
    for host in next(iter(runs.values())).links if runs else ():
        sides = [side for run in runs.values() for side in asdict(run.links[host]).values()]
        lines.append([host, *(f"{side / 1e6:,.2f}" for side in sides)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def as_json(results: Results, arguments: Mapping[str, Arguments]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, found in results.items():
        told[name] = {"arguments": dict(arguments[name])}
        for system, run in found.items():
            if isinstance(run, str):
                told[name][system] = {"failed": run}
                continue
            figures = {figure.name: figure.of(run) for figure in PROGRAMS[name].figures}
            told[name][system] = {"figures": figures, **asdict(run)}
    return told


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="programs to run (default: %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="systems to measure (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="show the run of median time (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="small values and few hosts: a few seconds per program")
    parser.add_argument("--set", action="append", default=[], metavar="PROGRAM.NAME=VALUE", help="another argument")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and link counters to a file")
    parser.add_argument("--write", action="store_true", help="update the table in benchmarks/README.md")
    return parser.parse_args()


def given_arguments(given: argparse.Namespace) -> dict[str, Arguments]:
    """Return the arguments of each program to run. Exits if an option names an unknown program or argument."""
    names = given.programs.split(",")
    for name in names:
        if name not in PROGRAMS:
            raise SystemExit(f"no such program: {name}; there are {', '.join(PROGRAMS)}")
    chosen = {name: dict(PROGRAMS[name].short if given.short else PROGRAMS[name].full) for name in names}
    for setting in given.set:
        key, _, value = setting.partition("=")
        name, _, argument = key.partition(".")
        if argument not in chosen.get(name, {}) or not value.isdecimal() or int(value) < 1:
            there = ", ".join(f"{name}.{argument}" for name, each in chosen.items() for argument in each)
            raise SystemExit(f"--set {setting}: not one of {there} with a whole number of 1 or more")
        chosen[name][argument] = int(value)
    return dict(chosen)


def installed(names: str) -> list[str]:
    for system in names.split(","):
        if system not in SYSTEMS:
            raise SystemExit(f"no such system: {system}; there are {', '.join(SYSTEMS)}")
        if interpreter(system) is None:
            print(f"{system} is not installed: python benchmarks/peers.py {system} installs it", file=sys.stderr)
    return [system for system in names.split(",") if interpreter(system) is not None]


def main() -> None:
    given = parse()
    arguments, systems = given_arguments(given), installed(given.systems)
    run_as_root()
    if why_not():
        print(f"{why_not()}: hosts are groups of processes, and only values are counted", file=sys.stderr)
        systems = [system for system in systems if system == "scaler"]
        limited = [name for name, each in arguments.items() if "megabits" in each]
        if limited:
            print(f"omitted, because links cannot be limited: {', '.join(limited)}", file=sys.stderr)
        arguments = {name: each for name, each in arguments.items() if name not in limited}
    # `timeout` sends SIGTERM. Exiting normally removes the hosts, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    results: dict[str, dict[str, Measured | str]] = {}
    for name, each in arguments.items():
        results[name] = {}
        for system in systems:
            limit = PROGRAMS[name].limit_seconds
            try:
                results[name][system] = median_run(
                    [run_program(name, system, each, limit) for _ in range(given.rounds)]
                )
            except RunFailedError as error:
                print(f"{name}: {system}: {error}", file=sys.stderr)
                results[name][system] = str(error)
        print(f"{name}\n\n{table({name: results[name]}, arguments, systems)}\n{link_table(results[name])}")
        if given.json:
            given.json.write_text(json.dumps(as_json(results, arguments), indent=1) + "\n")
    text = f"{machine(given.rounds)}\n\n" + "".join(f"- {versions(system)}\n" for system in systems)
    text += "\n" + table(results, arguments, systems)
    print(text)
    if given.write:
        README.write_text(with_table(README.read_text(), text, BEGIN, END))
    if any(isinstance(run, str) for found in results.values() for run in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
