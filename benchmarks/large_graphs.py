"""Graphs of very many small nodes through `get`: chains, fan-ins and random layers, with ten inputs a node.

Rates, and the growth of all processes together at its largest, per node. The graph itself is made before.

    python benchmarks/peers.py                    # once
    python benchmarks/large_graphs.py [--nodes 1000000] [--peer-nodes 10000] [--limit 1200]

Other systems get fewer nodes, because they need minutes for them; their rates hardly depend on the number.
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
"""Keeps the values small."""
LOOK_SECONDS = 1.0
"""Reading how much memory a large process has takes a part of this time, and a core."""

Graph = dict[str, Any]
VALUES: Graph = {f"value {number}": number for number in range(INPUTS)}
"""Inputs that are no nodes. All systems take names of inputs; some take nothing else."""


def add(*values: int) -> int:
    return sum(values) % MODULUS


def chain(nodes: int) -> tuple[Graph, list[str]]:
    """Each node takes the one before, and nine values."""
    graph: Graph = {**VALUES, "0": (add, *VALUES)}
    others = list(VALUES)[1:]
    for number in range(1, nodes):
        graph[str(number)] = (add, str(number - 1), *others)
    return graph, [str(nodes - 1)]


def fan_in(nodes: int) -> tuple[Graph, list[str]]:
    """Ten nodes into one, again and again, until one is left."""
    leaves = nodes * (INPUTS - 1) // INPUTS
    left = deque(str(number) for number in range(leaves))
    graph: Graph = VALUES | dict.fromkeys(left, (add, *VALUES))
    while len(left) > 1:
        name = str(len(graph) - INPUTS)
        graph[name] = (add, *(left.popleft() for _ in range(min(INPUTS, len(left)))))
        left.append(name)
    return graph, [left[0]]


def random_layers(nodes: int) -> tuple[Graph, list[str]]:
    """A hundred layers; each node takes ten of the layer before."""
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
    """Return the values of these keys, computed here: each node comes after its inputs."""
    values: dict[str, int] = {}
    for name, node in graph.items():
        values[name] = add(*(values[each] for each in node[1:])) if isinstance(node, tuple) else node
    return [values[key] for key in keys]


class Peak:
    """Watches the memory of all processes for its largest growth, from a thread."""

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
    # They are of no use to the processes that are measured.
    from benchmarks.one_run import run_once  # noqa: PLC0415
    from benchmarks.peers import interpreter, versions  # noqa: PLC0415
    from benchmarks.rows import PLATFORMS  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--peer-nodes", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=1_200.0, help="seconds of one run")
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
