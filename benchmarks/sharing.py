"""Compares how schedulers share slots: in simulated time, and on real clusters with two workers.

    python benchmarks/sharing.py [--only simulated|clusters] [--systems a,b] [--rounds 3] [--write]

Simulated figures are the same on every machine. Each part takes half a minute, for clusters per system and round.
`--write` updates the tables in benchmarks/README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.all import README, with_table
from benchmarks.frame import Plan, measure, parser, plan
from benchmarks.machine import machine
from benchmarks.peers import versions
from benchmarks.sharing_clients import ROW
from benchmarks.simulated_sharing import SCHEDULERS, WORKLOADS, Outcome, Workload, simulate
from benchmarks.table import table

PARTS = ("simulated", "clusters")
LEGEND = """\
Each cell shows the mean difference between the clients' shares and the ideal ones, in windows of 10 s and in % of all
12 slots; for a late client, the times until it has 90 % of its share, and until it has 90 to 110 % ("never": not within
a minute); and the utilization. Dask and Ray use FIFO. Slurm's half-life is two minutes, like Scaler's. All schedulers
except Scaler decide without delay here.
"""


def markers(part: str) -> tuple[str, str]:
    return f"<!-- sharing, {part}, begins -->\n", f"<!-- sharing, {part}, ends -->\n"


def simulated(workloads: Iterable[Workload] = WORKLOADS) -> str:
    lines = [["workload", *SCHEDULERS], ["---"] * (1 + len(SCHEDULERS))]
    lines += [[each.title, *(shown(simulate(name, each)) for name in SCHEDULERS)] for each in workloads]
    return LEGEND.replace("\n", " ").strip() + "\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def shown(outcome: Outcome) -> str:
    times = ["never" if seconds is None else f"{seconds:.1f} s" for seconds in outcome.late_seconds]
    return " / ".join([f"{100 * outcome.error:.1f} %", *times, f"{100 * outcome.utilization:.1f} %"])


def clusters(todo: Plan) -> str:
    systems = [system for system in todo.systems if system in ROW.systems]
    found = measure("sharing_clients", ROW, todo)
    lines = "".join(f"- {versions(system)}\n" for system in systems)
    return f"{machine(todo.rounds)}\n\n{lines}\n{table([(ROW.title, ROW, found)], systems)}"


def main() -> None:
    options = parser("Compare how schedulers share slots.")
    options.add_argument("--only", choices=PARTS, help="part to run (default: both)")
    options.add_argument("--write", action="store_true", help="update the tables in benchmarks/README.md")
    given = options.parse_args()
    for part in (given.only,) if given.only else PARTS:
        text = simulated() if part == "simulated" else clusters(plan(given))
        print(text)
        if given.write:
            README.write_text(with_table(README.read_text(), text, *markers(part)))


if __name__ == "__main__":
    main()
