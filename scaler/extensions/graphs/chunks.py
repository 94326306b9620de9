"""Groups small nodes of a large graph into chunks that run as one task each. Pure.

A chunk takes nodes level by level, which lets chunks run in parallel. A node remains single if its value is requested,
if it has options, or if its arguments include lists or computations. Without a size from the user, samples run first,
and only functions whose calls cost less than a task are chunked.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

from scaler.extensions.graphs.plan import InnerCall, Key, Plan
from scaler.extensions.graphs.program import POSITION_BITS, Program, value_at
from scaler.median import median

MAX_NODES = 256
"""Maximum measured size of a chunk: up to 10 ms of work, with a value small enough for a message."""
MAX_NODE_SECONDS = 40e-6
"""Cost (seconds) of a node that is a separate task. Chunking longer nodes saves nothing and delays levels with few
nodes."""
MAX_CHAINED_SECONDS = 200e-6
"""Cost (seconds) of a node in a graph with few nodes per level: each level of tasks waits for messages, and the next
level is not prefetched."""
MAX_CHAINED_NODES = 2048
MAX_VALUE_BYTES = 128
CHAINED_SECONDS = 0.05
"""Target duration (seconds) of a chunk in a narrow graph."""
MAX_LOADS = 4
"""Maximum loads of chunk values by single nodes, per chunked node: each load costs 10 us."""
MIN_NODES = 5_000
MIN_LEVELS = 500
"""Minimum number of inner nodes, or of consecutive nodes, for which sampling pays off."""
WAIT_SECONDS = 0.05
WAIT_SECONDS_PER_NODE = 4e-6
"""Maximum wait (seconds) for the samples: about a tenth of the graph's time without chunks."""
FIRST_SAMPLES = 256
SAMPLES = 16
"""Maximum number of further samples per function, and of consecutive samples."""
MAX_FUNCTIONS = 32
"""Maximum number of functions with `SAMPLES` samples, because some graphs have a function for each node."""
MAX_INPUTS = 1024
"""A chunk ends once it needs this many values and other tasks, because each is sent whole."""
_STAGE = 1 << 40
"""Exceeds the number of levels of any graph. Single nodes end a stage, and a chunk never spans two stages."""
_STRINGS = frozenset({str})


class Levels:
    """The nodes of a graph by level. steps: for each level, whether its nodes are single, and their numbers."""

    def __init__(
        self,
        plan: Plan,
        alone: Container[Key],
        sent: Container[Key] = (),
        is_small: Callable[[Callable[..., Any]], bool] = lambda _: True,
    ) -> None:
        """alone: single nodes. sent: nodes already submitted. is_small: whether a function's calls are cheap."""
        self._plan = plan
        levels: defaultdict[int, list[int]] = defaultdict(list)
        small: dict[int, bool] = {}
        self._ranks = ranks = [0] * len(plan.keys)
        """By node: the level of a chunked node, the start of the next stage for a single node, 0 for any other."""
        rank_of = ranks.__getitem__
        for number, key in enumerate(plan.keys):
            if key in plan.values or key in sent:
                continue
            rank = 1 + max(map(rank_of, plan.inputs(number)), default=0)
            function, *arguments = plan.nodes[key]
            if id(function) not in small:
                small[id(function)] = is_small(function)
            if not small[id(function)] or key in alone or not plan.is_simple(arguments):
                rank += -rank % _STAGE
            ranks[number] = rank
            levels[rank].append(number)
        self.steps = [(not rank % _STAGE, levels[rank]) for rank in sorted(levels)]

    @property
    def are_worth_it(self) -> bool:
        """Whether chunks save more than single nodes spend on loading the values of whole chunks."""
        singles = [number for is_single, numbers in self.steps if is_single for number in numbers]
        loads = sum(self._ranks[each] % _STAGE > 0 for number in singles for each in self._plan.inputs(number))
        return loads <= MAX_LOADS * sum(len(numbers) for is_single, numbers in self.steps if not is_single)


class Constant(NamedTuple):
    value: Any


class NodeChunk:
    """The nodes of a chunk, from which its program is made. inputs: chunks, single nodes, and values that it needs."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.inputs: list[NodeChunk | Constant | Key] = []
        self.future: Any = None
        self.chunks: dict[Any, int] = {}
        self.slots, self.sources = array("i"), array("Q")
        self.functions, self.counts = array("I"), array("I")
        self.is_kept = bytearray()
        """By node: whether chunks (1) or single nodes (2) need its value."""

    def add(self, whole: NodeChunk | Constant | Key, position: int = 0) -> int:
        """Add an external value; return its slot. position: 1-based position within the value of a chunk."""
        index = self.chunks.setdefault(whole, len(self.inputs)) if position else len(self.inputs)
        if index == len(self.inputs):
            self.inputs.append(whole)
        self.sources.append(index << POSITION_BITS | position)
        return -len(self.sources)

    def arguments(self, found: Mapping[Key, Any]) -> tuple[Any, ...]:
        """Return the program and its inputs once all input tasks exist. found: values by key."""
        program = Program(self.functions, self.counts, self.slots, self.sources, bytes(self.is_kept))
        inputs = [
            each.future if type(each) is NodeChunk else each.value if type(each) is Constant else found[each]
            for each in self.inputs
        ]
        return program, *inputs

    def values(self) -> dict[Key, InnerCall]:
        """Return arguments that stand for the values of nodes, as single nodes need them. The chunk's task must
        exist."""
        kept = zip(self.keys, self.is_kept, strict=True)
        return {key: InnerCall(value_at, (self.future, at)) for at, (key, by) in enumerate(kept) if by > 1}


class GraphCut:
    """A graph divided into tasks.

    order: keys of single nodes, and chunks, in topological order. functions: functions of chunked nodes, by number.
    """

    def __init__(self, plan: Plan, levels: Levels, size: int) -> None:
        self._plan = plan
        self._size = size
        self.order: list[Key | NodeChunk] = []
        self._functions: dict[int, tuple[int, Callable[..., Any]]] = {}
        numbers = range(len(plan.keys))
        self._chunks: list[NodeChunk | None] = [None for _ in numbers]
        self._positions = array("I", bytes(4 * len(numbers)))
        self._open: list[int] = []
        for is_single, level in levels.steps:
            if is_single or 2 * min(len(self._open), len(level)) > size:
                self._close()  # if both levels are wide, chunks within one level run in parallel
            for number in level:
                if is_single:
                    self._add_single(number)
                    continue
                self._open.append(number)
                if len(self._open) >= size:
                    self._close()
        self._close()
        self.functions = [function for _, function in self._functions.values()]

    def _close(self) -> None:
        """Divide the open nodes into chunks: a single chunk unless the nodes need too many inputs."""
        numbers, self._open = self._open, []
        while len(numbers) > 1:
            chunk = self._chunk_of(numbers)
            self.order.append(chunk)
            count = len(chunk.keys)
            for position, number in enumerate(numbers[:count]):
                self._chunks[number] = chunk
                self._positions[number] = position
            del numbers[:count]
        if numbers:
            self._add_single(numbers[0])

    def _add_single(self, number: int) -> None:
        self.order.append(self._plan.keys[number])
        for each in self._plan.inputs(number):
            self._keep(each, 2)

    def _keep(self, number: int, by: int) -> tuple[NodeChunk | None, int]:
        """Return the chunk and 1-based position of a node, whose value another task needs; None for a single node."""
        chunk, position = self._chunks[number], self._positions[number]
        if chunk is None:
            return None, 0
        chunk.is_kept[position] |= by
        return chunk, position + 1

    def _chunk_of(self, numbers: Sequence[int]) -> NodeChunk:
        """Return the longest prefix of these nodes that needs at most MAX_INPUTS inputs."""
        made, plan = NodeChunk(), self._plan
        slots: dict[int, int] = {}
        for place, number in enumerate(numbers):
            if place and len(made.inputs) >= MAX_INPUTS:
                break
            key = plan.keys[number]
            function, *arguments = plan.nodes[key]
            inputs = plan.inputs(number)
            if len(inputs) < len(arguments) or not _STRINGS.issuperset(map(type, arguments)):
                inputs = [plan.number(each) if plan.is_key(each) else made.add(Constant(each)) for each in arguments]
            for each in inputs:
                slot = slots.get(each)
                if slot is None:
                    if each >= 0:
                        chunk, position = self._keep(each, 1)
                        slot = made.add(plan.keys[each] if chunk is None else chunk, position)
                    else:
                        slot = each  # a constant
                    slots[each] = slot
                made.slots.append(slot)
            self._functions.setdefault(id(function), (len(self._functions), function))
            made.functions.append(self._functions[id(function)][0])
            made.counts.append(len(arguments))
            made.keys.append(key)
            slots[number] = place
        made.is_kept = bytearray(len(made.keys))
        return made


def is_large(plan: Plan, unwanted: int) -> bool:
    """Return whether sampling pays off: for many nodes, and for long chains, whose nodes would each need messages."""
    return unwanted >= MIN_NODES or (unwanted >= MIN_LEVELS and len(Levels(plan, ()).steps) > MIN_LEVELS)


def samples_of(plan: Plan, own: Container[Key]) -> dict[Key, int]:
    """Return sample nodes of each function, with their levels. own: nodes with separate options.

    Samples depend only on samples.
    """
    counts: defaultdict[int, int] = defaultdict(int)
    found: dict[Key, int] = {}
    for number, (key, node) in enumerate(plan.nodes.items()):
        function = id(node[0])
        is_wanted = (function in counts or len(counts) < MAX_FUNCTIONS) and counts[function] < SAMPLES
        if (is_wanted or number < FIRST_SAMPLES) and key not in own:
            needed = [plan.keys[each] for each in plan.inputs(plan.number(key))]
            level = 1 + max((found.get(each, 0 if each in plan.values else SAMPLES) for each in needed), default=0)
            if level <= SAMPLES:
                counts[function] += 1
                found[key] = level
    return found


class Measured:
    def __init__(self, levels: Collection[int] = ()) -> None:
        """levels: the levels of the sampled nodes."""
        self._is_narrow = SAMPLES in levels and len(levels) < 4 * SAMPLES
        self._max_seconds = MAX_CHAINED_SECONDS if self._is_narrow else MAX_NODE_SECONDS
        self._seconds: defaultdict[int, list[float]] = defaultdict(list)
        self._size_bytes: defaultdict[int, int] = defaultdict(int)

    def add(self, function: Callable[..., Any], seconds: float, size_bytes: int) -> None:
        self._seconds[id(function)].append(seconds)
        self._size_bytes[id(function)] = max(size_bytes, self._size_bytes[id(function)])

    def is_small(self, function: Callable[..., Any]) -> bool:
        seconds = self._seconds.get(id(function), [math.inf])
        return median(seconds) <= self._max_seconds and self._size_bytes[id(function)] <= MAX_VALUE_BYTES

    @property
    def size(self) -> int:
        """The size of chunks. In a narrow graph, chunks wait for each other, so fewer and longer chunks are better."""
        if not self._is_narrow:
            return MAX_NODES
        longest = max(1e-6, *map(median, self._seconds.values()))
        return max(MAX_NODES, min(MAX_CHAINED_NODES, int(CHAINED_SECONDS / longest)))
