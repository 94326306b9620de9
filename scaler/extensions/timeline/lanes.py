"""Task bars by worker lane, with blocks for tasks that are only counted. Pure.

A lane is a processor of a worker, or its replacement, and runs one task at a time. A task that waits for subtasks
keeps its lane until it ends, and tasks that use its slot run on another lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from scaler.protocol.monitor_rows import RUNNING

LaneKey = tuple[str, int]
"""Worker name and lane number, from 1."""
MAX_BLOCKS = 20_000
FINE_US = 250_000
"""Maximum time (microseconds) that one block covers, unless blocks are merged by age."""
SHARE_OF_AGE = 200
"""Merge old blocks that together cover at most 1/SHARE_OF_AGE of their age, a few pixels on a page that shows them."""


class Bar(NamedTuple):
    """A task, from start to end (unix seconds). A running task ends now."""

    start: float
    end: float
    task: str
    function: str
    state: str
    inputs: float = 0.0
    """Seconds from the start until the stored inputs were loaded."""
    inputs_bytes: int = 0
    failed: float = 0.0
    """Failed share of the task, 0 to 1."""


class Block(NamedTuple):
    """Tasks that are only counted, between two times (unix seconds). busy: total running seconds.

    function: empty if unknown or mixed. failed: number of failed tasks. Of a chunk, the failed share counts.
    """

    start: float
    end: float
    tasks: int
    busy: float
    function: str = ""
    failed: float = 0.0

    def joined(self, other: Block) -> Block:
        return Block(
            min(self.start, other.start),
            max(self.end, other.end),
            self.tasks + other.tasks,
            self.busy + other.busy,
            self.function if self.function == other.function else "",
            self.failed + other.failed,
        )


@dataclass(slots=True)
class Lane:
    bars: list[Bar] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def settle(self, resolution: float) -> None:
        self.bars.sort()
        for place, (bar, after) in enumerate(pairwise(self.bars)):
            if bar.state == RUNNING and bar.end > after.start:  # its end is not reported yet
                self.bars[place] = bar._replace(end=after.start)
        self.blocks = _joined(self.blocks, resolution)


class Omitted:
    """Blocks of omitted tasks by lane, in microseconds of the worker's clock. Bounded: old blocks are merged."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, list[Block]] = {}
        self._count = 0

    def add(self, key: LaneKey, block: Block) -> None:
        blocks = self._lanes.setdefault(key, [])
        if blocks and (joined := blocks[-1].joined(block)).end - joined.start <= FINE_US:
            blocks[-1] = joined
            return
        blocks.append(block)
        self._count += 1
        if self._count > MAX_BLOCKS:
            self._shrink()

    def blocks(self, clocks: Mapping[str, float]) -> Iterator[tuple[LaneKey, list[Block]]]:
        """Yield the blocks of each lane in unix seconds. clocks: unix seconds at the zero of each worker's clock."""
        for key, blocks in self._lanes.items():
            zero = clocks.get(key[0])
            if zero is not None:
                yield (
                    key,
                    [
                        each._replace(start=zero + each.start / 1e6, end=zero + each.end / 1e6, busy=each.busy / 1e6)
                        for each in blocks
                    ],
                )

    def _shrink(self) -> None:
        for key, blocks in list(self._lanes.items()):
            newest = max(block.end for block in blocks)
            self._lanes[key] = _joined(blocks, FINE_US, newest)
        while (count := sum(map(len, self._lanes.values()))) > MAX_BLOCKS * 3 // 4:
            self._lanes = {
                key: rest for key, blocks in self._lanes.items() if (rest := blocks[(len(blocks) + 1) // 2 :])
            }
        self._count = count


def _joined(blocks: list[Block], most: float, now: float = -inf) -> list[Block]:
    found: list[Block] = []
    for block in sorted(blocks):
        if found:
            joined = found[-1].joined(block)
            if joined.end - joined.start <= max(most, (now - joined.start) / SHARE_OF_AGE):
                found[-1] = joined
                continue
        found.append(block)
    return found
