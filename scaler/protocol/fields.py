"""Field codecs: the Cap'n Proto layout of message fields, and the rules for their values.

Messages declare each field with a type from this module, such as `Seconds` or `Attempts`. The same rules apply to
reading and writing. A violation raises ValueError, or LimitError if a list to write has too many entries.

A *scalar* is stored in the data section of its struct. All other fields are *pointers*: `write` passes content and
pointer to a `Writer`, and `read` takes the struct's next pointers from `links`. `count` is the number of rows of a
batch.
"""

from __future__ import annotations

import math
import struct
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from itertools import accumulate, chain, islice, pairwise
from typing import Annotated, Any, NamedTuple

from scaler.ids import ID_BYTES, MAX_ATTEMPT, PEER_ID_BYTES
from scaler.texts import escaped_lines

MAX_SECONDS = 1e9
"""Maximum duration in a field: thirty years, which is still exact to the microsecond."""
MAX_ENTRIES = 65_536
"""Maximum groups, functions, units, capabilities, or texts in a list. Entries use far more memory than bytes sent."""
MAX_ROWS = 32_768
"""Maximum tasks in a Submit, which the scheduler processes in about 0.1 s. Other entries count by their cost."""
RAGGED_PER_ROW = 8
"""Number of entries of ragged columns, such as references, that count as one row."""

MAX_DISPLAY_CHARACTERS = 8_192
"""Maximum length of a text. Longer texts are truncated."""

WORD_BYTES = 8
BYTES, U16, U32, U64, STRUCTS = 2, 3, 4, 5, 7
"""Element sizes of lists, with Cap'n Proto's numbers."""
_WIDTHS = {BYTES: 1, U16: 2, U32: 4, U64: 8, STRUCTS: 8}
_CODES = {"Bool": "?", "UInt8": "B", "UInt16": "H", "UInt32": "I", "UInt64": "Q", "Int64": "q", "Float64": "d"}
_SIZES = {"List(UInt8)": BYTES, "List(UInt16)": U16, "List(UInt32)": U32, "List(UInt64)": U64}
PADDING = [bytes(count) for count in range(WORD_BYTES)]
_LIST = 1

Links = Iterator[tuple[int, int]]
"""Pointers in a struct, each with the offset of the byte after it."""
Check = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(slots=True)
class Frame:
    """Reader of one body. Rejects pointers that are out of bounds or exceed a budget. bases: offset of each segment,
    then the end. budget_rows: remaining rows to read; see `MAX_ROWS`."""

    body: bytes
    bases: Sequence[int]
    budget_words: int
    budget_rows: float = math.inf

    def list_at(self, pointer: int, after: int, size: int) -> tuple[int, int]:
        """Return the offset and length of a list with this element size (for STRUCTS: length in words, excluding the
        tag). after: offset of the byte after the pointer."""
        if not pointer:
            return after, 0
        if pointer & 3 == 2:
            pointer, after = self._landing(pointer)
        if pointer & 0x7_0000_0003 != size << 32 | _LIST:
            raise ValueError("a pointer does not point to a list with elements of the right size")
        count = pointer >> 35
        words = (count * _WIDTHS[size] + 7) >> 3
        return self._content(pointer, after, words + (size == STRUCTS)), count

    def struct_at(self, pointer: int, after: int) -> tuple[int, int, int]:
        if not pointer:
            return after, 0, 0
        if pointer & 3 == 2:
            pointer, after = self._landing(pointer)
        if pointer & 3:
            raise ValueError("a pointer does not point to a struct")
        data, count = pointer >> 32 & 0xFFFF, pointer >> 48
        return self._content(pointer, after, data + count), data, count

    def word(self, at: int) -> int:
        return int.from_bytes(self.body[at : at + WORD_BYTES], "little")

    def spend(self, words: int) -> None:
        """Charge words read, or entries without words. Raises ValueError if the budget is exceeded."""
        self.budget_words -= words
        if self.budget_words < 0:
            raise ValueError("parts of the message overlap, and reading them would take too much memory")

    def spend_rows(self, rows: float) -> None:
        """Charge rows before reading them. Raises ValueError if the budget is exceeded."""
        self.budget_rows -= rows
        if self.budget_rows < 0:
            raise ValueError(f"its tasks, groups, functions, and references count as more than MAX_ROWS ({MAX_ROWS})")

    def _content(self, pointer: int, after: int, words: int) -> int:
        offset = (pointer & 0xFFFF_FFFF) >> 2
        start = after + (offset - 0x4000_0000 if offset & 0x2000_0000 else offset) * WORD_BYTES
        segment = bisect_left(self.bases, after, 1, len(self.bases) - 1)
        if not self.bases[segment - 1] <= start <= start + words * WORD_BYTES <= self.bases[segment]:
            raise ValueError("a pointer points outside its segment")
        self.spend(words)
        return start

    def _landing(self, pointer: int) -> tuple[int, int]:
        """Return the pointer that a far pointer points to, and the offset of the byte after it."""
        is_double = bool(pointer & 4)
        pad = self._pad(pointer, 1 + is_double)
        found = self.word(pad)
        if not is_double:
            if found & 3 == 2:
                raise ValueError("a far pointer points to another far pointer")
            return found, pad + WORD_BYTES
        # A two-word landing pad: a far pointer to the content, then a tag without an offset.
        tag = self.word(pad + WORD_BYTES)
        if found & 7 != 2 or tag & 0xFFFF_FFFE:
            raise ValueError("a far pointer does not point to a landing pad")
        # Offset -1, relative to the byte after the first content word.
        return tag | 0xFFFF_FFFC, self._pad(found, 1) + WORD_BYTES

    def _pad(self, pointer: int, words: int) -> int:
        segment = pointer >> 32
        start = (pointer >> 3 & 0x1FFF_FFFF) * WORD_BYTES
        if segment >= len(self.bases) - 1 or self.bases[segment] + start + words * WORD_BYTES > self.bases[segment + 1]:
            raise ValueError("a pointer points outside the message")
        return self.bases[segment] + start


def list_pointer(count: int, size: int, offset: int) -> int:
    """Return a pointer to a list. For STRUCTS, count is in words, excluding the tag."""
    return count << 35 | size << 32 | (offset & 0x3FFF_FFFF) << 2 | _LIST


def struct_pointer(data_words: int, pointer_words: int, offset: int) -> int:
    """Return a pointer to a struct, or the tag for a list of `offset` structs."""
    if not data_words and not pointer_words:
        offset = -1  # distinguishes an empty struct from null
    return pointer_words << 48 | data_words << 32 | (offset & 0x3FFF_FFFF) << 2


@dataclass(slots=True)
class Writer:
    """A struct being written, and the content of the whole message. count: number of rows in the batch. offset: words
    from the end of the next pointer to the next content."""

    out: list[bytes]
    pointers: list[int]
    offset: int
    count: int

    def add(self, pointer: int, words: int) -> None:
        """Add a pointer to content that was appended to `out`. words: size of the content."""
        self.pointers.append(pointer)
        self.offset += words - 1

    def add_list(self, size: int, count: int, data: Sequence[bytes]) -> None:
        if not count:
            self.pointers.append(0)
            self.offset -= 1
            return
        self.pointers.append(count << 35 | size << 32 | self.offset << 2 | _LIST)
        length = count * _WIDTHS[size]
        self.out += data
        if length & 7:
            self.out.append(PADDING[-length & 7])
        self.offset += (length + 7 >> 3) - 1


@dataclass(eq=False)
class FieldCodec:
    """Base class of field codecs. wire: type in the schema. note: the schema's comment on valid values."""

    wire: str = ""
    note: str = ""


@dataclass(eq=False)
class Scalar(FieldCodec):
    to_wire: Check = same
    from_wire: Check = same

    def __post_init__(self) -> None:
        self.code = _CODES.get(self.wire, "H")
        """Format character of the struct module; `?` is one bit."""


def enum_field(members: type[StrEnum]) -> Scalar:
    by_number = tuple(members)

    def member(number: int) -> StrEnum:
        if number >= len(by_number):
            raise ValueError(f"unknown {members.__name__} {number}")
        return by_number[number]

    return Scalar(members.__name__, "", {member: number for number, member in enumerate(by_number)}.__getitem__, member)


class PointerField(FieldCodec):
    pointers = 1
    """Number of pointers that the field uses."""
    write: Callable[[Any, Writer], None]
    read: Callable[[Frame, Links, int], Any]


@dataclass(eq=False)
class Data(PointerField):
    """A list of bytes. to_wire and from_wire convert and validate values."""

    to_wire: Check = same
    from_wire: Check = same

    def write(self, value: Any, to: Writer) -> None:
        data = self.to_wire(value)
        to.add_list(BYTES, len(data), (data,))

    def read(self, frame: Frame, links: Links, _count: int) -> Any:
        start, length = frame.list_at(*next(links), BYTES)
        return self.from_wire(frame.body[start : start + length])


def id_field(what: str, length: int, may_be_empty: bool = False) -> Data:

    def check(value: bytes) -> bytes:
        if len(value) != length and (value or not may_be_empty):
            raise ValueError(f"{what} has {length} bytes, not {len(value)}")
        return value

    return Data("Data", f"{length} bytes{', or empty' if may_be_empty else ''}", check, check)


class Text(Data):
    """UTF-8 text with a trailing zero byte. Both sides truncate it. The reader escapes unprintable characters."""

    def write(self, value: str, to: Writer) -> None:
        data = value[:MAX_DISPLAY_CHARACTERS].encode() + b"\0" if value else b""
        to.add_list(BYTES, len(data), (data,))

    def read(self, frame: Frame, links: Links, _count: int) -> str:
        pointer, after = next(links)
        if not pointer:
            return ""
        start, length = frame.list_at(pointer, after, BYTES)
        data = frame.body[start : start + length]
        if data[-1:] != b"\0":
            raise ValueError("a text does not end with a zero byte")
        text = data[:-1].decode()[:MAX_DISPLAY_CHARACTERS]
        return text if text.isprintable() else escaped_lines(text)[:MAX_DISPLAY_CHARACTERS]


def join_ids(ids: Sequence[bytes]) -> bytes:
    joined = b"".join(ids)
    if len(joined) != ID_BYTES * len(ids):
        raise ValueError(f"ids have {ID_BYTES} bytes each")
    return joined


def split_ids(data: bytes) -> list[bytes]:
    count, rest = divmod(len(data), ID_BYTES)
    if rest:
        raise ValueError(f"size {len(data)} is not a multiple of the id size, {ID_BYTES}")
    return [data] if count == 1 else list(struct.unpack("16s" * count, data))


class IdColumn(Data):
    def read(self, frame: Frame, links: Links, _count: int) -> Any:
        start, length = frame.list_at(*next(links), BYTES)
        frame.spend_rows(length // ID_BYTES)
        return self.from_wire(frame.body[start : start + length])


@dataclass(eq=False)
class Numbers(PointerField):
    """Unsigned integers; in a column, one per row. allowed: valid numbers; empty: all. is_optional: a column may be
    empty. is_usual: the single-task fast path expects an optional column to be filled. saturates: clamps numbers that
    are too large.
    """

    allowed: Sequence[int] = ()
    _: KW_ONLY
    is_column: bool = True
    is_optional: bool = False
    is_usual: bool = False
    saturates: bool = False

    def __post_init__(self) -> None:
        self.size = _SIZES[self.wire]
        self.code = _CODES[self.wire[5:-1]]
        self.largest = 2 ** (8 * _WIDTHS[self.size]) - 1

    def _check_length(self, length: int, count: int) -> None:
        if self.is_column and length != count and (length or not self.is_optional):
            raise ValueError(f"a column of length {length} does not match the ids: {count}")

    def _check(self, value: Sequence[int]) -> None:
        allowed = self.allowed
        if allowed and value:
            if isinstance(allowed, bytes):
                wrong: Sequence[int] = bytes(value).translate(None, allowed)
            else:
                wrong = [each for each in (min(value), max(value)) if each not in allowed]
            if wrong:
                raise ValueError(f"{wrong[0]} is not allowed here")

    def write(self, value: Sequence[int], to: Writer) -> None:
        if self.size == BYTES:
            value = bytes(value)
        self._check_length(len(value), to.count)
        self._check(value)
        if isinstance(value, bytes):
            data = value
        else:
            layout = f"<{len(value)}{self.code}"
            try:
                data = struct.pack(layout, *value)
            except struct.error:
                # Rare: a clock jumped.
                if not self.saturates or min(value) < 0:
                    raise
                data = struct.pack(layout, *(min(each, self.largest) for each in value))
        to.add_list(self.size, len(value), (data,))

    def read(self, frame: Frame, links: Links, count: int) -> list[int]:
        start, found = frame.list_at(*next(links), self.size)
        self._check_length(found, count)
        value: Sequence[int]
        if self.size == BYTES:
            value = frame.body[start : start + found]
        else:
            value = struct.unpack_from(f"<{found}{self.code}", frame.body, start)
        self._check(value)
        return list(value)


PAYLOAD_SIZES = Numbers("List(UInt32)", "in bytes")
ROW_COUNTS = Numbers("List(UInt32)", "entries of each row, or empty", is_optional=True)


class PayloadColumn(PointerField):
    """A payload for each row: a column of sizes, then all bytes concatenated."""

    pointers = 2

    def write(self, value: Sequence[bytes], to: Writer) -> None:
        sizes = list(map(len, value))
        PAYLOAD_SIZES.write(sizes, to)
        to.add_list(BYTES, sum(sizes), value)

    def read(self, frame: Frame, links: Links, count: int) -> list[bytes]:
        sizes = PAYLOAD_SIZES.read(frame, links, count)
        start, length = frame.list_at(*next(links), BYTES)
        total = sum(sizes)
        if total != length:
            raise ValueError(f"length {length} does not match the sizes, whose sum is {total}")
        body = frame.body
        return [body[begin:end] for begin, end in pairwise(accumulate(sizes, initial=start))]


class Ragged(PointerField):
    """A list for each row: a column of lengths, then all entries concatenated. Both are empty if no row has entries."""

    def __init__(self, entries: PointerField) -> None:
        super().__init__()
        self.entries = entries
        self.pointers = 1 + entries.pointers

    def write(self, value: Sequence[Sequence[bytes]], to: Writer) -> None:
        ROW_COUNTS.write(list(map(len, value)), to)
        entries = list(chain.from_iterable(value))
        rows, to.count = to.count, len(entries)
        self.entries.write(entries, to)
        to.count = rows

    def read(self, frame: Frame, links: Links, count: int) -> list[tuple[bytes, ...]]:
        counts = ROW_COUNTS.read(frame, links, count)
        total = sum(counts)
        frame.spend_rows(total / RAGGED_PER_ROW)
        found = self.entries.read(frame, links, total)
        if len(found) != total:
            raise ValueError(f"a list of length {len(found)} does not match the lengths, whose sum is {total}")
        entries = iter(found)
        return [tuple(islice(entries, each)) for each in counts]


TEXT = Text("Text")
BYTE_STRING = Data("Data")
ID_COLUMN = IdColumn("Data", "column of ids", join_ids, split_ids)
PAYLOAD_COLUMN = PayloadColumn("Data", "one behind the other")


def _number(wire: str, least: float, most: float, wrong: str, note: str = "") -> Scalar:
    """Return a codec for numbers from `least` to `most`, which rejects NaN."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"{value} is {wrong}")
        return value

    return Scalar(wire, note, check, check)


class PartList(NamedTuple):
    """Marks a field that is a list of structs on the wire, but may have another type in Python. rows: number of rows
    that a struct counts as; see `MAX_ROWS`."""

    element: type[Any]
    to_wire: Check = list
    from_wire: Check = list
    rows: int = 1


def list_of_values(element: type[Any], make: Callable[[Iterator[Any]], Sequence[Any]]) -> PartList:
    """Return a `PartList` for a list of single values, each of which is a struct on the wire."""
    return PartList(element, lambda values: [(each,) for each in values], lambda parts: make(each for (each,) in parts))


def needs_of(pairs: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return the needs of a spec, in order of their names. Each is a label (0) or an amount."""
    before = ""
    for name, amount in pairs:
        if name <= before:
            raise ValueError(f"needs are out of order or duplicated at {name!r}")
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"need {name}={amount} is neither a label nor an amount above 0")
        before = name
    return tuple(pairs)


def pairs_of(offers: Mapping[str, float | None]) -> list[tuple[str, float]]:
    return [(name, _amount(name, amount)) for name, amount in offers.items()]


def offers_of(pairs: Sequence[tuple[str, float]]) -> dict[str, float | None]:
    offers: dict[str, float | None] = {}
    for name, amount in pairs:
        if name in offers:
            raise ValueError(f"capability {name!r} is listed twice")
        offers[name] = (_amount(name, amount) or None) if amount else None  # -1 also represents a label
    return offers


def _amount(name: str, amount: float | None) -> float:
    if amount is None or amount == -1:
        return 0.0
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"capability {name}={amount} is neither a label nor an amount above 0")
    return float(amount)


Count32 = Annotated[int, Scalar("UInt32")]
Count64 = Annotated[int, Scalar("UInt64")]
Signed64 = Annotated[int, Scalar("Int64")]
Limit = Annotated[int, _number("Int64", -1, math.inf, "neither a limit nor -1", "-1: no limit")]
_NOT_SECONDS = f"not a number of seconds from 0 to {MAX_SECONDS:g}"
Seconds = Annotated[float, _number("Float64", 0, MAX_SECONDS, _NOT_SECONDS)]
_LARGEST = sys.float_info.max
_CLOCK = _number("Float64", -_LARGEST, _LARGEST, "not a clock reading", "a reading of the sender's clock")
Clock = Annotated[float, _CLOCK]
Percent = Annotated[float, _number("Float64", 0, _LARGEST, "not a percentage")]
Share = Annotated[float, _number("Float64", 0, 1, "not a share from 0 to 1")]
Price = Annotated[float, _number("Float64", 0, _LARGEST, "not a price")]
Number = Annotated[float, Scalar("Float64")]
Id = Annotated[bytes, id_field("an id", ID_BYTES)]
OptionalId = Annotated[bytes, id_field("an id", ID_BYTES, may_be_empty=True)]
PeerId = Annotated[bytes, id_field("a peer id", PEER_ID_BYTES)]
OptionalPeerId = Annotated[bytes, id_field("a peer id", PEER_ID_BYTES, may_be_empty=True)]
Ids = Annotated[list[bytes], ID_COLUMN]
Attempts = Annotated[list[int], Numbers("List(UInt16)", f"from 1 to {MAX_ATTEMPT}", range(1, MAX_ATTEMPT + 1))]
Flags = Annotated[list[bool], Numbers("List(UInt8)", "0 or 1", bytes((0, 1)))]
Durations = Annotated[list[int], Numbers("List(UInt64)", "microseconds", saturates=True)]
_PROFILE = Numbers("List(UInt64)", "empty if no task in the batch has it", is_optional=True, saturates=True)
Profile = Annotated[list[int], _PROFILE]
Totals = Annotated[list[int], Numbers("List(UInt64)", saturates=True)]
_TIMES = "microseconds on the worker's monotonic clock, or empty"
Times = Annotated[list[int], Numbers("List(UInt64)", _TIMES, is_optional=True, is_usual=True, saturates=True)]
Lanes = Annotated[list[int], Numbers("List(UInt16)", "or empty", is_optional=True, is_usual=True, saturates=True)]
Payloads = Annotated[list[bytes], PAYLOAD_COLUMN]
RaggedIds = Annotated[list[tuple[bytes, ...]], Ragged(Data("Data", "column of ids", join_ids, split_ids))]
RaggedPayloads = Annotated[list[tuple[bytes, ...]], Ragged(PAYLOAD_COLUMN)]
Devices = Annotated[list[tuple[int, ...]], Ragged(Numbers("List(UInt8)", ""))]
Sizes = Annotated[list[int], Numbers("List(UInt64)")]
Numbers32 = Annotated[list[int], Numbers("List(UInt32)")]
PartSizes = Annotated[list[int], Numbers("List(UInt64)", is_column=False)]
Counts = PartSizes
"""A list of numbers that is not a column."""
