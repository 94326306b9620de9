"""A graph in layers: each node depends on two nodes of the previous layer, and only the last layer is returned.

The executor has no graphs.

    python benchmarks/graph.py [--short] [--systems a,b] [--rounds 3]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rows import PLATFORMS, Figure, Row, run_script
from benchmarks.systems import Start
from benchmarks.tasks import check, warm_up

MODULUS = 1_000_003
"""Keeps values small."""

ROW = Row(
    title="graph, {layers} layers of {width} nodes, 2 dependencies each: nodes/s",
    figures=(Figure("nodes/s", 12_000),),
    full={"layers": 100, "width": 50},
    short={"layers": 40, "width": 50},
    systems=PLATFORMS,
)


def add(left: int, right: int) -> int:
    return (left + right) % MODULUS


def key(layer: int, number: int) -> str:
    return f"node-{layer}-{number}"


def scenario(start: Start, layers: int, width: int) -> dict[str, float]:
    graph: dict[str, Any] = {f"value-{number}": number for number in range(width)}
    values = list(range(width))
    for layer in range(layers):
        for number in range(width):
            names = [
                key(layer - 1, each % width) if layer else f"value-{each % width}" for each in (number, number + 1)
            ]
            graph[key(layer, number)] = (add, *names)
        values = [add(values[number], values[(number + 1) % width]) for number in range(width)]
    keys = [key(layers - 1, number) for number in range(width)]

    system = start(2)
    warm_up(system, 2)
    began = time.perf_counter()
    results = system.graph(graph, keys)
    seconds = time.perf_counter() - began
    check(results == values, "a graph")
    system.close()
    return {"nodes/s": layers * width / seconds}


if __name__ == "__main__":
    run_script("graph")
