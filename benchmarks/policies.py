"""Compares scaling policies in simulated time: makespan and cost relative to all units from the start.

python benchmarks/policies.py [--workloads a,b] [--write]

Policies, scheduler core, and reconciler are real; units and tasks are simulated (`scaler.testing.scaling`). Figures are
the same on every machine. `--write` updates the tables in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.all import README, with_table
from scaler.testing.scaling.comparison import (
    CONTESTANTS,
    DASK,
    DEFAULT,
    Cell,
    Summary,
    duels,
    mean_cost,
    reference,
    summary,
    table,
)
from scaler.testing.scaling.workloads import MORE_WORKLOADS, WORKLOADS, Workload

ALL = WORKLOADS + MORE_WORKLOADS

BEGIN, END = "<!-- the policies begin -->\n", "<!-- the policies end -->\n"


def main() -> None:
    names = [workload.name for workload in ALL]
    options = argparse.ArgumentParser(description="Compare scaling policies in simulated time: two minutes.")
    options.add_argument("--workloads", help=f"workloads to run, from {','.join(names)} (default: all)")
    options.add_argument("--write", action="store_true", help="update the tables in benchmarks/README.md")
    arguments = options.parse_args()
    wanted = arguments.workloads.split(",") if arguments.workloads else names
    for name in wanted:
        if name not in names:
            raise SystemExit(f"no such workload: {name}; there are {', '.join(names)}")
    if arguments.write and arguments.workloads:
        raise SystemExit("--write needs all workloads: omit --workloads")
    workloads = [workload for workload in ALL if workload.name in wanted]
    text = tables(workloads)
    print(text, end="")
    if arguments.write:
        README.write_text(with_table(README.read_text(), text, BEGIN, END))


def tables(workloads: Sequence[Workload]) -> str:
    """Return the tables of policies and of cells in Markdown, and a sentence about the default policy."""
    found = {name: table(name, workloads) for name in CONTESTANTS}
    head = [
        "policy",
        "makespan",
        "of the sums",
        "response",
        "unit-seconds",
        "of the sums",
        "overshoot",
        "most flaps",
        "restarts",
        "lost or rerun by scaling down",
    ]
    lines = [row(head), row(["---"] * len(head))]
    lines += [row([name, *summed(summary(cells), len(cells))]) for name, cells in found.items()]
    compared = duels(DEFAULT, DASK, workloads)
    slowest = max(each.makespan for each in compared)
    lines.append(
        f"\nCompared with Dask's rule, `{DEFAULT}` has a makespan of at most {slowest:.2f} in {len(compared)} cells, "
        f"and costs {mean_cost(compared):.2f} on average.\n\n"
    )
    head = ["workload", "start-up", "all from the start: s / unit-seconds", *CONTESTANTS]
    lines += [row(head), row(["---"] * len(head))]
    for index, (workload, startup) in enumerate((each, startup) for each in workloads for startup in each.startups):
        theirs = reference(workload, startup)
        figures = f"{theirs.makespan_seconds:,.0f} / {theirs.unit_seconds:,.0f}"
        lines.append(
            row([workload.name, f"{startup:g} s", figures, *(shown(cells[index]) for cells in found.values())])
        )
    return "".join(lines)


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def summed(whole: Summary, cells: int) -> list[str]:
    return [
        f"{whole.makespan:.2f} x",
        f"{whole.makespan_of_sums:.2f} x",
        f"{whole.response:.2f} x",
        f"{whole.cost:.2f} x",
        f"{whole.cost_of_sums:.2f} x",
        f"{whole.overshoot:.1f}",
        str(whole.flaps),
        f"{whole.restarts} in {cells} cells",
        str(whole.scaled_down + whole.lost),
    ]


def shown(cell: Cell) -> str:
    """Return a cell's text: makespan and unit-seconds relative to the reference, overshoot, and flaps."""
    return f"{cell.makespan:.2f} / {cell.cost:.2f} / {cell.outcome.overshoot} / {cell.outcome.flaps}"


if __name__ == "__main__":
    main()
