"""Field codecs: what a field of a message looks like in Cap'n Proto, and the rule that its values obey.

A message declares each field with a type of this module, such as `Seconds` or `Attempts`. The same rules hold in both
directions, and a broken one is a ValueError: the caller knows whose fault it is. A list with more entries than one
message may have is a LimitError when it is written.

A *scalar* lies in the data section of its struct. All other fields are *pointers*: `write` appends the content to
`out` and the pointer to `pointers`; `offset` is the distance in words from the end of that pointer to the content, and
`write` returns the offset of the next pointer. `read` gets all pointers of the struct, the index of the field's first
pointer, and `origin`, the first byte of the struct's pointer section. `count` is the number of rows of a batch.
"""

from __future__ import annotations

import math
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from itertools import accumulate, chain, islice, pairwise
from typing import Annotated, Any, NamedTuple

from scaler.ids import ID_BYTES, MAX_ATTEMPT, PEER_ID_BYTES

MAX_SECONDS = 1e9
"""Longest duration that a field may name: thirty years, and still exact to the microsecond."""
MAX_ENTRIES = 65_536
"""Most groups, functions, units, capabilities or texts in one list: each costs far more memory than its bytes."""

WORD_BYTES = 8
BYTES, U16, U32, U64, STRUCTS = 2, 3, 4, 5, 7
"""Element sizes of lists as Cap'n Proto numbers them."""
_WIDTHS = {BYTES: 1, U16: 2, U32: 4, U64: 8, STRUCTS: 8}
_CODES = {BYTES: "B", U16: "H", U32: "I", U64: "Q"}
PADDING = [bytes(count) for count in range(WORD_BYTES)]
_LIST = 1

Pointers = Sequence[int]
Check = Callable[[Any], Any]


def same(value: Any) -> Any:
    """Return the value: the check of a field without a rule."""
    return value


class Frame:
    """The bytes of one body while it is read: follows pointers, and refuses those that leave it or cost too much.

    bases: first byte of each segment, and the end of the last. The segments of a body are read as one piece.
    """

    __slots__ = ("bases", "body", "budget_words")

    def __init__(self, body: bytes, bases: Sequence[int], budget_words: int) -> None:
        self.body = body
        self.bases = bases
        self.budget_words = budget_words

    def list_at(self, pointer: int, after: int, size: int) -> tuple[int, int]:
        """Return the first byte of a list of elements of this size, and their number.

        after: the byte behind the pointer. For STRUCTS the number is that of the words behind the list's tag.
        """
        if not pointer:
            return after, 0
        if pointer & 3 == 2:
            pointer, after = self._landing(pointer)
        if pointer & 0x7_0000_0003 != size << 32 | _LIST:
            raise ValueError("a pointer does not lead to a list of elements of the right size")
        count = pointer >> 35
        words = (count * _WIDTHS[size] + 7) >> 3
        return self._content(pointer, after, words + (size == STRUCTS)), count

    def struct_at(self, pointer: int, after: int) -> tuple[int, int, int]:
        """Return the first byte of a struct and the words of its data and pointers: none for a null pointer."""
        if not pointer:
            return after, 0, 0
        if pointer & 3 == 2:
            pointer, after = self._landing(pointer)
        if pointer & 3:
            raise ValueError("a pointer does not lead to a struct")
        data, count = pointer >> 32 & 0xFFFF, pointer >> 48
        return self._content(pointer, after, data + count), data, count

    def word(self, at: int) -> int:
        """Return the word at byte `at`, which is within the message."""
        return int.from_bytes(self.body[at : at + WORD_BYTES], "little")

    def spend(self, words: int) -> None:
        """Count words that are read, or entries without any. Raises ValueError when they are too many."""
        self.budget_words -= words
        if self.budget_words < 0:
            raise ValueError("the message's parts overlap, and reading them all would take too much memory")

    def _content(self, pointer: int, after: int, words: int) -> int:
        offset = (pointer & 0xFFFF_FFFF) >> 2
        start = after + (offset - 0x4000_0000 if offset & 0x2000_0000 else offset) * WORD_BYTES
        segment = bisect_left(self.bases, after, 1, len(self.bases) - 1)
        if not self.bases[segment - 1] <= start <= start + words * WORD_BYTES <= self.bases[segment]:
            raise ValueError("a pointer leads out of its segment")
        self.spend(words)
        return start

    def _landing(self, pointer: int) -> tuple[int, int]:
        """Return the pointer that a far pointer leads to, and the byte behind it."""
        is_double = bool(pointer & 4)
        pad = self._pad(pointer, 1 + is_double)
        found = self.word(pad)
        if not is_double:
            if found & 3 == 2:
                raise ValueError("a far pointer leads to another one")
            return found, pad + WORD_BYTES
        # A landing pad of two words: a far pointer to the content, then the pointer without an offset.
        tag = self.word(pad + WORD_BYTES)
        if found & 7 != 2 or tag & 0xFFFF_FFFE:
            raise ValueError("a far pointer leads to two words that are no landing pad")
        return tag | 0xFFFF_FFFC, self._pad(found, 1) + WORD_BYTES  # one word back from behind its first one

    def _pad(self, pointer: int, words: int) -> int:
        segment = pointer >> 32
        start = (pointer >> 3 & 0x1FFF_FFFF) * WORD_BYTES
        if segment >= len(self.bases) - 1 or self.bases[segment] + start + words * WORD_BYTES > self.bases[segment + 1]:
            raise ValueError("a pointer leads out of the message")
        return self.bases[segment] + start


def list_pointer(count: int, size: int, offset: int) -> int:
    """Return a pointer to a list; of STRUCTS, count is the words behind the tag."""
    return count << 35 | size << 32 | (offset & 0x3FFF_FFFF) << 2 | _LIST


def struct_pointer(data_words: int, pointer_words: int, offset: int) -> int:
    """Return a pointer to a struct, or the tag of a list of as many structs as `offset` says."""
    if not data_words and not pointer_words:
        offset = -1  # not at anything behind it, and not the pointer to nothing
    return pointer_words << 48 | data_words << 32 | (offset & 0x3FFF_FFFF) << 2


class FieldCodec:
    """Base of all field codecs. wire: the type in the schema. note: on the values, for the schema."""

    def __init__(self, wire: str, note: str = "") -> None:
        self.wire = wire
        self.note = note

    def wires(self, name: str) -> list[tuple[str, str, str]]:
        """Return the fields of the schema that this field is: name, type and a note on its values."""
        return [(name, self.wire, self.note)]


class Scalar(FieldCodec):
    """A number, a truth value or a choice in the data section. code: of the struct module; `?` is one bit."""

    def __init__(self, code: str, wire: str, check: Check = same, note: str = "") -> None:
        super().__init__(wire, note)
        self.code = code
        self.to_wire = self.from_wire = check


class EnumField(Scalar):
    """A member of a StrEnum; the wire numbers the members in their order."""

    def __init__(self, members: type[StrEnum]) -> None:
        super().__init__("H", members.__name__)
        by_number = tuple(members)
        self.to_wire = {member: number for number, member in enumerate(by_number)}.__getitem__

        def member(number: int) -> StrEnum:
            if number >= len(by_number):
                raise ValueError(f"{members.__name__} {number} is not known")
            return by_number[number]

        self.from_wire = member


class PointerField(FieldCodec):
    """Base of the codecs of fields behind pointers."""

    pointers = 1
    """Pointers of the struct that belong to the field."""
    write: Callable[[Any, int, list[bytes], list[int], int], int]
    read: Callable[[Frame, Pointers, int, int, int], Any]


def write_list(data: bytes, size: int, count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
    """Write a list of `count` elements, which are these bytes."""
    if not count:
        pointers.append(0)
        return offset - 1
    pointers.append(count << 35 | size << 32 | offset << 2 | _LIST)
    out.append(data)
    length = len(data)
    if length & 7:
        out.append(PADDING[-length & 7])
    return offset - 1 + (length + 7 >> 3)


class Data(PointerField):
    """A list of bytes. to_wire makes the bytes of a value, from_wire a value of the bytes; both check it."""

    def __init__(self, wire: str, note: str, to_wire: Check, from_wire: Check) -> None:
        super().__init__(wire, note)
        self._to_wire = to_wire
        self._from_wire = from_wire

    def write(self, value: Any, _count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
        data = self._to_wire(value)
        return write_list(data, BYTES, len(data), out, pointers, offset)

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, _count: int) -> Any:
        start, length = frame.list_at(pointers[index], origin + WORD_BYTES * (index + 1), BYTES)
        return self._from_wire(frame.body[start : start + length])


def id_field(what: str, length: int, may_be_empty: bool = False) -> Data:
    """Return the codec of bytes of this length."""

    def check(value: bytes) -> bytes:
        if len(value) != length and (value or not may_be_empty):
            raise ValueError(f"{what} has {length} bytes, not {len(value)}")
        return value

    return Data("Data", f"{length} bytes, or empty" if may_be_empty else f"{length} bytes", check, check)


class Text(Data):
    """Text in UTF-8, with a zero byte behind it."""

    def __init__(self) -> None:
        super().__init__("Text", "", lambda text: text.encode() + b"\0" if text else b"", self._decode)

    @staticmethod
    def _decode(data: bytes) -> str:
        if data[-1:] != b"\0":
            raise ValueError("a text does not end with a zero byte")
        return data[:-1].decode()

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, count: int) -> Any:
        return super().read(frame, pointers, index, origin, count) if pointers[index] else ""


def join_ids(ids: Sequence[bytes]) -> bytes:
    """Concatenate ids of 16 bytes each."""
    joined = b"".join(ids)
    if len(joined) != ID_BYTES * len(ids):
        raise ValueError(f"ids have {ID_BYTES} bytes each")
    return joined


def split_ids(data: bytes) -> list[bytes]:
    """Take concatenated ids apart."""
    count, rest = divmod(len(data), ID_BYTES)
    if rest:
        raise ValueError(f"{len(data)} bytes are not a whole number of {ID_BYTES}-byte ids")
    return [data] if count == 1 else list(struct.unpack("16s" * count, data))


@dataclass(eq=False)
class Numbers(PointerField):
    """Unsigned integers. In a column, one for each row.

    allowed: the numbers that may occur; any when there are none. is_optional: a column may be empty.
    saturates: a number that is too large becomes the largest one. make: the type of an entry.
    """

    size: int
    note: str
    allowed: Sequence[int] = ()
    _: KW_ONLY
    is_column: bool = True
    is_optional: bool = False
    saturates: bool = False
    make: type[int] = int

    def __post_init__(self) -> None:
        super().__init__(f"List(UInt{8 * _WIDTHS[self.size]})", self.note)
        self.code = _CODES[self.size]
        self.largest = 2 ** (8 * _WIDTHS[self.size]) - 1

    def _check(self, value: Sequence[int], count: int) -> None:
        if self.is_column and len(value) != count and (value or not self.is_optional):
            raise ValueError(f"{len(value)} entries do not fit {count} ids")
        allowed = self.allowed
        if allowed and value:
            if isinstance(allowed, bytes):
                wrong: Sequence[int] = bytes(value).translate(None, allowed)
            else:
                wrong = [each for each in (min(value), max(value)) if each not in allowed]
            if wrong:
                raise ValueError(f"{wrong[0]} is not allowed here")

    def write(self, value: Sequence[int], count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
        if self.size == BYTES:
            data = bytes(value)
            self._check(data, count)
            return write_list(data, BYTES, len(data), out, pointers, offset)
        self._check(value, count)
        layout = f"<{len(value)}{self.code}"
        try:
            data = struct.pack(layout, *value)
        except struct.error:
            # Rare: a clock jumped, or a task ran for more than an hour.
            if not self.saturates or min(value) < 0:
                raise
            data = struct.pack(layout, *(min(each, self.largest) for each in value))
        return write_list(data, self.size, len(value), out, pointers, offset)

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, count: int) -> list[int]:
        start, found = frame.list_at(pointers[index], origin + WORD_BYTES * (index + 1), self.size)
        value: Sequence[int]
        if self.size == BYTES:
            value = frame.body[start : start + found]
        else:
            value = struct.unpack_from(f"<{found}{self.code}", frame.body, start)
        self._check(value, count)
        return list(value) if self.make is int else list(map(self.make, value))


_SIZES = Numbers(U32, "in bytes")


class PayloadColumn(PointerField):
    """Payloads, one for each row: a column of their sizes, and their bytes with nothing between them."""

    pointers = 2

    def __init__(self) -> None:
        super().__init__("Data", "one behind the other")

    def wires(self, name: str) -> list[tuple[str, str, str]]:
        return [*_SIZES.wires(name.removesuffix("s") + "Sizes"), *super().wires(name)]

    def write(self, value: Sequence[bytes], count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
        sizes = list(map(len, value))
        offset = _SIZES.write(sizes, count, out, pointers, offset)
        total = sum(sizes)
        pointers.append(total << 35 | BYTES << 32 | offset << 2 | _LIST if total else 0)
        out += value
        if total & 7:
            out.append(PADDING[-total & 7])
        return offset - 1 + (total + 7 >> 3)

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, count: int) -> list[bytes]:
        sizes = _SIZES.read(frame, pointers, index, origin, count)
        start, length = frame.list_at(pointers[index + 1], origin + WORD_BYTES * (index + 2), BYTES)
        total = sum(sizes)
        if total != length:
            raise ValueError(f"{length} bytes do not fit the sizes, whose sum is {total}")
        body = frame.body
        return [body[begin:end] for begin, end in pairwise(accumulate(sizes, initial=start))]


class Ragged(PointerField):
    """A list for each row: a column of their lengths, and the entries of all lists behind each other.

    All of it is empty when no row has an entry. A value without rows means the same.
    """

    def __init__(self, entries: PointerField) -> None:
        super().__init__("")
        self._entries = entries
        self.pointers = 1 + entries.pointers

    def wires(self, name: str) -> list[tuple[str, str, str]]:
        counts = _COUNTS.wires(name.removesuffix("s") + "Counts")
        return [*counts, *self._entries.wires(name)]

    def write(
        self, value: Sequence[Sequence[bytes]], count: int, out: list[bytes], pointers: list[int], offset: int
    ) -> int:
        offset = _COUNTS.write(list(map(len, value)), count, out, pointers, offset)
        entries = list(chain.from_iterable(value))
        return self._entries.write(entries, len(entries), out, pointers, offset)

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, count: int) -> list[tuple[bytes, ...]]:
        counts = _COUNTS.read(frame, pointers, index, origin, count)
        found = self._entries.read(frame, pointers, index + 1, origin, sum(counts))
        if len(found) != sum(counts):
            raise ValueError(f"{len(found)} entries are not the {sum(counts)} that the rows have")
        entries = iter(found)
        return [tuple(islice(entries, each)) for each in counts]


_COUNTS = Numbers(U32, "entries of each row, or empty", is_optional=True)
TEXT = Text()
BYTE_STRING = Data("Data", "", same, same)
ID_COLUMN = Data("Data", "column of ids", join_ids, split_ids)
PAYLOAD_COLUMN = PayloadColumn()


def _within(least: float, most: float, wrong: str) -> Check:
    """Return a check of numbers from `least` to `most`; NaN is never one."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"{value} is {wrong}")
        return value

    return check


class PartList(NamedTuple):
    """Marks a field that is a list of parts on the wire, and another thing in Python."""

    element: type[Any]
    to_wire: Check = list
    from_wire: Check = list


def needs_of(pairs: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return the needs of a spec: in the order of their names, each a label (0) or an amount."""
    before = ""
    for name, amount in pairs:
        if name <= before:
            raise ValueError(f"needs are out of order, or twice the same, at {name!r}")
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"need {name}={amount} is neither a label nor an amount above 0")
        before = name
    return tuple(pairs)


def pairs_of(offers: Mapping[str, float | None]) -> list[tuple[str, float]]:
    """Return the capabilities that a worker offers as pairs; 0 stands for a label."""
    return [(name, _amount(name, amount)) for name, amount in offers.items()]


def offers_of(pairs: Sequence[tuple[str, float]]) -> dict[str, float | None]:
    """Return the capabilities that a worker offers by their names."""
    offers: dict[str, float | None] = {}
    for name, amount in pairs:
        if name in offers:
            raise ValueError(f"capability {name!r} is there twice")
        offers[name] = _amount(name, amount) if amount else None
    return offers


def _amount(name: str, amount: float | None) -> float:
    if amount is None or amount == -1:
        return 0.0
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"capability {name}={amount} is neither a label nor an amount above 0")
    return float(amount)


Count32 = Annotated[int, Scalar("I", "UInt32")]
Count64 = Annotated[int, Scalar("Q", "UInt64")]
Signed64 = Annotated[int, Scalar("q", "Int64")]
_limit = _within(-1, math.inf, "neither a limit nor -1")
Limit = Annotated[int, Scalar("q", "Int64", _limit, "-1: no limit")]
_seconds = _within(0, MAX_SECONDS, f"not a number of seconds from 0 to {MAX_SECONDS:g}")
Seconds = Annotated[float, Scalar("d", "Float64", _seconds)]
_clock = _within(-sys.float_info.max, sys.float_info.max, "not the reading of a clock")
Clock = Annotated[float, Scalar("d", "Float64", _clock, "a reading of the sender's clock")]
Percent = Annotated[float, Scalar("d", "Float64", _within(0, sys.float_info.max, "not a percentage"))]
Number = Annotated[float, Scalar("d", "Float64")]
Id = Annotated[bytes, id_field("an id", ID_BYTES)]
OptionalId = Annotated[bytes, id_field("an id", ID_BYTES, may_be_empty=True)]
PeerId = Annotated[bytes, id_field("a peer id", PEER_ID_BYTES)]
Ids = Annotated[list[bytes], ID_COLUMN]
Attempts = Annotated[list[int], Numbers(U16, f"from 1 to {MAX_ATTEMPT}", range(1, MAX_ATTEMPT + 1))]
Flags = Annotated[list[bool], Numbers(BYTES, "0 or 1", bytes((0, 1)), make=bool)]
Durations = Annotated[list[int], Numbers(U32, "microseconds; 4294967295 for anything longer", saturates=True)]
Profile = Annotated[list[int], Numbers(U64, "empty when no task of the batch has it", is_optional=True, saturates=True)]
Totals = Annotated[list[int], Numbers(U64, "", saturates=True)]
Payloads = Annotated[list[bytes], PAYLOAD_COLUMN]
RaggedIds = Annotated[list[tuple[bytes, ...]], Ragged(ID_COLUMN)]
RaggedPayloads = Annotated[list[tuple[bytes, ...]], Ragged(PAYLOAD_COLUMN)]
PartSizes = Annotated[list[int], Numbers(U64, "", is_column=False)]
