"""What the tasks of a graph with chunks run: the nodes of a chunk, or a single node that needs values of chunks.

The value of a chunk is a list with the values of its nodes. A node that raises ends its chunk, and so the graph.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scaler.client.future import ScalerFuture
from scaler.grammar import counted
from scaler.serialization import Parts, dump_value, load_value, name_of
from scaler.serialization.exceptions import note_origin
from scaler.worker.processor.calling import finish

POSITION_BITS = 32
_POSITION = (1 << POSITION_BITS) - 1
_UNCHANGEABLE = frozenset({type(None), bool, int, float, complex, str, bytes})


class Program(NamedTuple):
    """The nodes of one task. Their values have the slots from 0 on, what comes from elsewhere those down from -1.

    functions, counts: of each node, the number of its function and of its arguments. slots: of all arguments. sources:
    of each slot from elsewhere, the number of the input, and in the lowest bits the position there from 1 on, or 0 for
    the whole input. is_kept: of each node, whether other tasks need its value. labels: texts that name the nodes.
    """

    functions: array[int]
    counts: array[int]
    slots: array[int]
    sources: array[int]
    is_kept: bytes
    labels: list[str]


class Changeable(NamedTuple):
    """A value of a node that another one could change. Each that needs it gets a copy, as in a task of its own."""

    parts: Parts


class ChunkFunction:
    """What the task of a chunk runs: the functions of its nodes."""

    def __init__(self, functions: Sequence[Callable[..., Any]], seconds: float) -> None:
        """seconds: when a chunk has run for so long, the rest of its nodes become tasks of their own."""
        self.functions = functions
        self.seconds = seconds
        name = name_of(functions[0]) if len(functions) == 1 else counted(len(functions), "function")
        self.__qualname__ = f"{name} (chunks)"

    def __call__(self, program: Program, *inputs: Any) -> list[Any]:
        """Return the value of each node that another task needs, None in the places of the others.

        Raises what the first node raises that does, with the label of the node as its origin.
        """
        values = _run(self.functions, program, inputs, time.monotonic() + self.seconds)
        return [_copied(value) if kept else None for value, kept in zip(values, program.is_kept, strict=False)]


class ChunkedNode:
    """What the task of a single node runs that needs values of chunks."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__qualname__ = name_of(function)

    def __call__(self, program: Program, *inputs: Any) -> Any:
        values = _from_elsewhere(program, inputs)
        return self.function(*[values[slot] for slot in program.slots])


def _from_elsewhere(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """Return the values of the slots from elsewhere, the first one last."""
    found = [
        inputs[source >> POSITION_BITS][(source & _POSITION) - 1]
        if source & _POSITION
        else inputs[source >> POSITION_BITS]
        for source in program.sources
    ]
    found.reverse()
    return found


def _run(functions: Sequence[Callable[..., Any]], program: Program, inputs: Sequence[Any], until: float) -> list[Any]:
    """Return the values of all slots. until: the time of the monotonic clock from which nodes become tasks."""
    values: list[Any] = [None] * len(program.counts)
    values.extend(_from_elsewhere(program, inputs))
    is_plain = _UNCHANGEABLE.issuperset(map(type, values))
    if not is_plain:
        values = [_kept(each) for each in values]
    slots, end = program.slots, 0
    number = 0
    try:
        for number, (function, count) in enumerate(zip(program.functions, program.counts, strict=True)):
            if time.monotonic() > until:
                _send_rest(functions, program, values, number)
                break
            begin, end = end, end + count
            arguments = [values[slot] for slot in slots[begin:end]]
            value = finish(functions[function](*(arguments if is_plain else map(_copied, arguments))))
            if type(value) not in _UNCHANGEABLE:
                is_plain = False
                value = _kept(value)
            values[number] = value
    except BaseException as error:
        note_origin(error, program.labels[number])
        raise
    return values


def _send_rest(functions: Sequence[Callable[..., Any]], program: Program, values: list[Any], first: int) -> None:
    """Have the nodes from this one on run as tasks of their own, and fill in their values."""
    from scaler import Client  # noqa: PLC0415 (few chunks need it)

    futures: dict[int, ScalerFuture] = {}
    end = sum(program.counts[:first])
    with Client() as client:
        for number, count in enumerate(program.counts[first:], first):
            begin, end = end, end + count
            slots = program.slots[begin:end]
            arguments = [futures[slot] if slot in futures else _copied(values[slot]) for slot in slots]
            futures[number] = client.submit(functions[program.functions[number]], *arguments)
        for number, future in futures.items():
            try:
                values[number] = _kept(future.result())
            except BaseException as error:
                note_origin(error, program.labels[number])
                raise


def _kept(value: Any) -> Any:
    """Return what stands for a value in its slot. Raises SerializationError."""
    return value if type(value) in _UNCHANGEABLE else Changeable(dump_value(value))


def _copied(kept: Any) -> Any:
    """Return the value for which something stands in its slot."""
    return load_value(kept.parts) if type(kept) is Changeable else kept
