"""Worker side of graph chunks: runs the nodes of a chunk.

The value of a chunk is the list of its nodes' values. A failed node ends its chunk, and therefore the graph.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scaler.errors import SerializationError
from scaler.grammar import counted
from scaler.protocol.messages import Outcome
from scaler.serialization import (
    ATOMS,
    Buffer,
    ManyCallsFunction,
    PickledFunction,
    dump_function,
    dump_value,
    load,
    name_of,
)
from scaler.serialization.exceptions import PartFailedError
from scaler.worker.processor.calling import failure_of, finish

POSITION_BITS = 32
_POSITION = (1 << POSITION_BITS) - 1


class Program(NamedTuple):
    """The nodes of a chunk. Node values have slots from 0 up, external values from -1 down.

    functions, counts: function number and argument count by node. slots: of all arguments. sources: by external slot,
    the index of the input, and in the lowest bits the 1-based position within it, or 0 for the whole input. is_kept: by
    node, whether other tasks need its value.
    """

    functions: array[int]
    counts: array[int]
    slots: array[int]
    sources: array[int]
    is_kept: bytes


class Changeable(NamedTuple):
    """A mutable value of a node. Each dependent gets a copy, as in separate tasks."""

    pickled: Buffer


class ChunkFunction(ManyCallsFunction):
    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.functions = functions
        self._nodes = [PickledFunction(dump_function(each)) for each in functions]
        name = name_of(functions[0]) if len(functions) == 1 else counted(len(functions), "function")
        self.__qualname__ = f"{name} (chunks)"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "functions": []}

    def __call__(self, program: Program, *inputs: Any) -> list[Any]:
        """Return the values of nodes that other tasks need, None for the rest. Raises PartFailedError."""
        ran: list[int] = []
        try:
            return self.run(program, inputs, ran)
        except BaseException as error:
            outcome, payload = failure_of(error)
            if outcome != Outcome.EXCEPTION or not ran:
                raise
            raise PartFailedError(len(ran) - 1, payload) from None

    def replay(self, *args: Any) -> list[Any]:
        program, *inputs = args
        return self.run(program, inputs, [])

    def run(self, program: Program, inputs: Sequence[Any], ran: list[int]) -> list[Any]:
        """Return the values, or raise the exception of a node. ran: collects the number of each called node."""
        nodes, slots, end = self._nodes, program.slots, 0
        values: list[Any] = [None] * len(program.counts)
        for source in reversed(program.sources):  # external slots are indexed from -1 down
            whole, position = inputs[source >> POSITION_BITS], source & _POSITION
            values.append(whole[position - 1] if position else whole)
        is_plain = ATOMS.issuperset(map(type, values))
        if not is_plain:
            values = [_copyable(each) for each in values]
        for number, (function, count) in enumerate(zip(program.functions, program.counts, strict=True)):
            ran.append(number)
            begin, end = end, end + count
            arguments: Sequence[Any] = [values[slot] for slot in slots[begin:end]]
            node = nodes[function]
            if is_plain and node.fresh.is_fixed:
                called = node.fresh.get()
            else:
                called, arguments = node.prepare(_copied, arguments)
            value = finish(called(*arguments))
            if type(value) not in ATOMS:
                is_plain = False
                value = Changeable(dump_value(value, in_band=True)[0])
            values[number] = value
        return [value if kept else None for value, kept in zip(values, program.is_kept, strict=False)]


def value_at(values: Sequence[Any], position: int) -> Any:
    """Return the value of one node. values: values of its chunk. Loads an argument of a node that is in no chunk."""
    return _copied([values[position]])[0]


def _copyable(value: Any) -> Any:
    """Return an input pickled if it is mutable. An input that cannot be pickled, such as a client, is shared."""
    if type(value) in ATOMS or type(value) is Changeable:
        return value
    try:
        return Changeable(dump_value(value, in_band=True)[0])
    except SerializationError:
        return value


def _copied(kept: Sequence[Any]) -> Sequence[Any]:
    copies: dict[int, Any] = {}
    for each in kept:
        if type(each) is Changeable and id(each) not in copies:
            copies[id(each)] = load([each.pickled])
    return [copies.get(id(each), each) for each in kept] if copies else kept
