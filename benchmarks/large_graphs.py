"""Graphs with very many small nodes through `get`: chains, fan-ins, and random layers, with ten inputs per node.

Prints nodes per second, and the peak memory growth of all processes per node. Building the graph is not measured.

    python benchmarks/peers.py                    # once
    python benchmarks/large_graphs.py [--nodes 1000000] [--peer-nodes 10000] [--limit 1200]

Other systems get fewer nodes because they are slow. Their rates hardly depend on the number of nodes.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.processes import memory_bytes, processes
from benchmarks.systems import Start
from benchmarks.tasks import check, warm_up

KINDS = ("chain", "fan-in", "random layers")
INPUTS = 10
LAYERS = 100
MODULUS = 1_000_003
"""Keeps values small."""
LOOK_SECONDS = 1.0
"""Interval between memory readings. One reading of a large process keeps a core busy for a part of it."""

Graph = dict[str, Any]
VALUES: Graph = {f"value {number}": number for number in range(INPUTS)}
"""Inputs that are not nodes. All systems accept names as inputs, and some accept nothing else."""


def add(*values: int) -> int:
    return sum(values) % MODULUS


def chain(nodes: int) -> tuple[Graph, list[str]]:
    """Make a chain: each node takes the previous node and nine values."""
    graph: Graph = {**VALUES, "0": (add, *VALUES)}
    others = list(VALUES)[1:]
    for number in range(1, nodes):
        graph[str(number)] = (add, str(number - 1), *others)
    return graph, [str(nodes - 1)]


def fan_in(nodes: int) -> tuple[Graph, list[str]]:
    """Make a tree in which each node takes ten nodes, down to a single one."""
    leaves = nodes * (INPUTS - 1) // INPUTS
    left = deque(str(number) for number in range(leaves))
    graph: Graph = VALUES | dict.fromkeys(left, (add, *VALUES))
    while len(left) > 1:
        name = str(len(graph) - INPUTS)
        graph[name] = (add, *(left.popleft() for _ in range(min(INPUTS, len(left)))))
        left.append(name)
    return graph, [left[0]]


def random_layers(nodes: int) -> tuple[Graph, list[str]]:
    """Make a hundred layers in which each node takes ten nodes of the previous layer."""
    draw, width = random.Random(1), nodes // LAYERS
    graph: Graph = dict(VALUES)
    before: list[str] = list(VALUES)
    for layer in range(LAYERS):
        names = [f"{layer} {number}" for number in range(width)]
        for name in names:
            graph[name] = (add, *draw.sample(before, INPUTS))
        before = names
    return graph, before


MAKE = (chain, fan_in, random_layers)


def expected(graph: Graph, keys: list[str]) -> list[int]:
    """Return the values of these keys, computed here in the graph's order, which puts inputs first."""
    values: dict[str, int] = {}
    for name, node in graph.items():
        values[name] = add(*(values[each] for each in node[1:])) if isinstance(node, tuple) else node
    return [values[key] for key in keys]


class Peak:
    """Records the peak memory growth of all processes, in a thread."""

    def __init__(self) -> None:
        self._everyone = processes()
        self._before = self.largest = memory_bytes(self._everyone)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.largest = max(self.largest, memory_bytes(self._everyone))

    def growth(self) -> float:
        self._is_over.set()
        self._thread.join()
        return max(self.largest, memory_bytes(self._everyone)) - self._before


def scenario(start: Start, kind: int, nodes: int) -> dict[str, float]:
    graph, keys = MAKE[kind](nodes)
    values = expected(graph, keys)
    system = start(2)
    warm_up(system, 2)
    peak = Peak()
    began = perf_counter()
    results = system.graph(graph, keys)
    seconds = perf_counter() - began
    growth = peak.growth()
    check(results == values, KINDS[kind])
    system.close()
    return {"nodes/s": len(graph) / seconds, "B/node": growth / len(graph)}


def main() -> None:
    # Imported here, because the measured processes do not need them.
    from benchmarks.one_run import run_once  # noqa: PLC0415
    from benchmarks.peers import interpreter, versions  # noqa: PLC0415
    from benchmarks.rows import PLATFORMS  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--peer-nodes", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=1_200.0, help="time limit of a run in seconds")
    parser.add_argument("--systems", default=",".join(PLATFORMS))
    given = parser.parse_args()
    systems = [each for each in given.systems.split(",") if interpreter(each)]
    for system in systems:
        print(f"- {versions(system)}")
    print("\n| graph | system | nodes | nodes/s | B/node, all processes |\n| --- | --- | --- | --- | --- |", flush=True)
    for kind, name in enumerate(KINDS):
        for system in systems:
            nodes = given.nodes if system == "scaler" else given.peer_nodes
            answer = run_once("large_graphs", system, {"kind": kind, "nodes": nodes}, given.limit)
            found = [f"{answer.figures[each]:,.0f}" for each in ("nodes/s", "B/node") if each in answer.figures]
            print(f"| {name} | {system} | {nodes:,} | {' | '.join(found or [answer.problem, '-'])} |", flush=True)
            if answer.detail:
                print(answer.detail, file=sys.stderr)


if __name__ == "__main__":
    main()
