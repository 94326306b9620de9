"""What ran on the lanes of workers: bars for the tasks that are known, blocks for those that are only counted. Pure.

A lane is a processor of a worker, or the one that took its place. It runs one task at a time, and all its times are by
one clock, so nothing in it overlaps. A task that waits for tasks of its own keeps its lane until it ends; what uses its
slot meanwhile runs on another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from scaler.protocol.monitor_rows import RUNNING

LaneKey = tuple[str, int]
"""A worker's name, and the number of one of its lanes, from 1."""
MAX_BLOCKS = 20_000
FINE_US = 250_000
"""Shortest time that a block of omitted tasks covers, if there are more on its lane."""
SHARE_OF_AGE = 200
"""Old blocks are joined: up to this part of their age, which is a few pixels of a page that shows them."""


class Bar(NamedTuple):
    """A task, from start to end in unix seconds; a running one ends now."""

    start: float
    end: float
    task: str
    function: str
    state: str
    inputs: float = 0.0
    """Seconds from its start until its stored inputs were there."""
    inputs_bytes: int = 0
    failed: float = 0.0
    """The share of it that failed, up to 1."""


class Block(NamedTuple):
    """Tasks that are only counted: between two times in unix seconds, and for how many seconds they ran together.

    function: empty when it is not known, or when they are of several. failed: how many failed, of a chunk its share.
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
        """Sort all, and join blocks that cover no more than this together."""
        self.bars.sort()
        for place, (bar, after) in enumerate(pairwise(self.bars)):
            if bar.state == RUNNING and bar.end > after.start:  # its end is not reported yet
                self.bars[place] = bar._replace(end=after.start)
        self.blocks = _joined(self.blocks, resolution)


class Omitted:
    """Tasks that are not kept one by one, by lane, in times of the worker's clock. Bounded: old blocks are joined."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, list[Block]] = {}
        self._count = 0

    def add(self, key: LaneKey, block: Block) -> None:
        """Add a block, whose times are microseconds."""
        blocks = self._lanes.setdefault(key, [])
        if blocks and (joined := blocks[-1].joined(block)).end - joined.start <= FINE_US:
            blocks[-1] = joined
            return
        blocks.append(block)
        self._count += 1
        if self._count > MAX_BLOCKS:
            self._shrink()

    def blocks(self, clocks: Mapping[str, float]) -> Iterator[tuple[LaneKey, list[Block]]]:
        """Yield what is known of each lane. clocks: unix seconds when the clock of a worker showed 0."""
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
    """Return blocks in their order, with those joined that cover at most this, or a share of their age."""
    found: list[Block] = []
    for block in sorted(blocks):
        if found:
            joined = found[-1].joined(block)
            if joined.end - joined.start <= max(most, (now - joined.start) / SHARE_OF_AGE):
                found[-1] = joined
                continue
        found.append(block)
    return found
