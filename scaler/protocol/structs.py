"""Struct codecs: how the fields of a declaration become one Cap'n Proto struct, by the rules of its compiler.

A struct is a *head* (its data section, then its pointers) and the content that the pointers lead to, in their order.
The codecs write everything into one segment, and read any layout that Cap'n Proto allows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import accumulate
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from scaler.protocol.fields import (
    BYTE_STRING,
    PAYLOAD_COLUMN,
    STRUCTS,
    TEXT,
    WORD_BYTES,
    Check,
    EnumField,
    Frame,
    PartList,
    PointerField,
    Pointers,
    Scalar,
    check_entries,
    limit_entries,
    list_pointer,
    struct_pointer,
)

MAX_INTERNED = 1024
"""Structs whose bytes are remembered; beyond it, all are forgotten, and learned again."""
MAX_INTERNED_BYTES = 1024


class StructCodec:
    """The codec of a message or of a part of one: a dataclass or a NamedTuple.

    The wire has the scalars, then the pointers, each in the order of the declaration; but payloads come after the other
    columns, and an interned struct last.
    """

    def __init__(self, of: type[Any]) -> None:
        self.type = of
        declared = {name: codec_of(name, hint) for name, hint in _hints(of)}
        self.name = of.__name__
        self.names = list(declared)
        self.fields = dict(
            sorted(declared.items(), key=lambda each: (isinstance(each[1], InternedField), each[1] is PAYLOAD_COLUMN))
        )
        self.scalars = {name: codec for name, codec in self.fields.items() if isinstance(codec, Scalar)}
        self.pointers = {name: codec for name, codec in self.fields.items() if isinstance(codec, PointerField)}
        self.pointer_words = sum(codec.pointers for codec in self.pointers.values())
        layout, self.data_words, self._slots, self._bits = _data_section([each.code for each in self.scalars.values()])
        self.words = self.data_words + self.pointer_words
        self._head = struct.Struct(f"<{layout}{self.pointer_words}Q")
        firsts = accumulate((codec.pointers for codec in self.pointers.values()), initial=0)
        self._reads = [
            (name, codec.read, first) for (name, codec), first in zip(self.pointers.items(), firsts, strict=False)
        ]
        self._writes = [(name, codec.write) for name, codec in self.pointers.items()]
        self._rules = list(self.scalars.items())
        names = [*self.scalars, *self.pointers]
        order = [names.index(name) for name in declared]
        self._reorder = itemgetter(*order) if order != sorted(order) else tuple
        self._take = _taker(of, list(declared), names)
        self._make: Callable[..., Any] = (lambda *values: values) if issubclass(of, tuple) else of
        self._rows = names.index("ids") if "ids" in names else -1

    def write(self, value: Any, out: list[bytes], offset: int) -> tuple[bytes, int]:
        """Append the content to `out`. Return the head, and the offset of whatever follows the content.

        offset: in words, from the end of the first pointer to the content.
        """
        values = self._take(value)
        count = len(values[self._rows]) if self._rows >= 0 else 0
        scalars = []
        pointers: list[int] = []
        name = ""
        try:
            for (name, codec), each in zip(self._rules, values, strict=False):  # noqa: B007 (the error names it)
                scalars.append(codec.to_wire(each) if codec.to_wire is not None else each)
            for (name, write), each in zip(self._writes, values[len(scalars) :], strict=True):  # noqa: B007
                offset = write(each, count, out, pointers, offset)
            name = ""
            numbers = [0 if index is None else scalars[index] for index in self._slots]
            for index, slot, bit in self._bits:
                if scalars[index]:
                    numbers[slot] |= bit
            return self._head.pack(*numbers, *pointers), offset
        except (ValueError, struct.error) as error:
            raise ValueError(f"{name}: {error}" if name else str(error)) from error

    def read(self, frame: Frame, at: int, data_words: int, pointer_words: int) -> Any:
        """Return the value whose head is at this place, with sections of this size."""
        origin = at + WORD_BYTES * data_words
        if data_words == self.data_words and pointer_words == self.pointer_words:
            head = self._head.unpack_from(frame.body, at)
        else:  # of another version, or without the words that are zero
            end = origin + WORD_BYTES * pointer_words
            sections = ((at, origin, self.data_words), (origin, end, self.pointer_words))
            parts = [
                frame.body[start:end][: WORD_BYTES * words].ljust(WORD_BYTES * words, b"\0")
                for start, end, words in sections
            ]
            head = self._head.unpack(b"".join(parts))
        pointers = head[len(self._slots) :]
        values: list[Any] = [None] * len(self._rules)
        for slot, index in enumerate(self._slots):
            if index is not None:
                values[index] = head[slot]
        for index, slot, bit in self._bits:
            values[index] = bool(head[slot] & bit)
        name = ""
        count = 0
        try:
            for index, (name, codec) in enumerate(self._rules):  # noqa: B007
                if codec.from_wire is not None:
                    values[index] = codec.from_wire(values[index])
            for name, read, first in self._reads:
                value = read(frame, pointers, first, origin, count)
                if name == "ids":
                    count = len(value)
                values.append(value)
        except (ValueError, struct.error) as error:
            raise ValueError(f"{name}: {error}") from error
        return self._make(*self._reorder(values))


class UnionCodec:
    """The codec of one of several structs, or of none: a word that says which, and a pointer to it."""

    data_words = pointer_words = 1
    words = 2

    def __init__(self, name: str, types: Sequence[type[Any]]) -> None:
        self.name = name
        self.members: dict[str, type[Any] | None] = {
            "none" if of is NoneType else of.__name__.removesuffix(name).lower(): None if of is NoneType else of
            for of in (NoneType, *(of for of in types if of is not NoneType))
        }
        self._types = list(self.members.values())

    def write(self, value: Any, out: list[bytes], offset: int) -> tuple[bytes, int]:
        """Append the content to `out`: see `StructCodec.write`."""
        pointers: list[int] = []
        if value is None:
            pointers.append(0)
            offset -= 1
        else:
            offset = StructField(type(value)).write(value, 0, out, pointers, offset)
        number = self._types.index(None if value is None else type(value))
        return struct.pack("<2Q", number, *pointers), offset

    def read(self, frame: Frame, at: int, data_words: int, pointer_words: int) -> Any:
        """Return the value whose head is at this place, with sections of this size."""
        number = frame.word(at) & 0xFFFF if data_words else 0
        if number >= len(self._types):
            raise ValueError(f"{self.name} {number} is not known")
        of = self._types[number]
        if of is None:
            return None
        at += WORD_BYTES * data_words
        return struct_codec(of).read(frame, *frame.struct_at(frame.word(at) if pointer_words else 0, at + WORD_BYTES))


class StructField(PointerField):
    """A struct behind a pointer."""

    def __init__(self, of: type[Any] | UnionCodec) -> None:
        self.codec = of if isinstance(of, UnionCodec) else struct_codec(of)

    def wires(self, name: str) -> list[tuple[str, str, str]]:
        return [(name, self.codec.name, "")]

    def write(self, value: Any, _count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
        codec = self.codec
        at = len(out)
        out.append(b"")
        out[at], inner = codec.write(value, out, codec.pointer_words - 1)
        pointers.append(struct_pointer(codec.data_words, codec.pointer_words, offset))
        return offset + codec.words + inner

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, _count: int) -> Any:
        return self.codec.read(frame, *frame.struct_at(pointers[index], origin + WORD_BYTES * (index + 1)))


class InternedField(StructField):
    """A struct that many messages repeat, and that cannot change: its bytes are remembered, both ways.

    It lies at the end of its message. Bytes that the codec itself writes for a value lead to nothing outside of them,
    so they mean the same wherever they stand.
    """

    def __init__(self, of: type[Any]) -> None:
        super().__init__(of)
        self.blocks: dict[Any, bytes] = {}
        self.values: dict[bytes, Any] = {}

    def block_of(self, value: Any) -> bytes:
        """Return the bytes of a value: its head and its content."""
        found = self.blocks.get(value)
        if found is None:
            out: list[bytes] = []
            super().write(value, 0, out, [], 0)
            found = b"".join(out)
            if len(found) <= MAX_INTERNED_BYTES:
                if len(self.blocks) >= MAX_INTERNED:
                    self.blocks.clear()
                    self.values.clear()
                self.blocks[value] = found
                self.values[found] = value
        return found

    def write(self, value: Any, _count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
        block = self.block_of(value)
        out.append(block)
        pointers.append(struct_pointer(self.codec.data_words, self.codec.pointer_words, offset))
        return offset - 1 + len(block) // WORD_BYTES

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, _count: int) -> Any:
        codec = self.codec
        at, *sizes = frame.struct_at(pointers[index], origin + WORD_BYTES * (index + 1))
        is_short = len(frame.body) - at <= MAX_INTERNED_BYTES and sizes == [codec.data_words, codec.pointer_words]
        value = self.values.get(frame.body[at:]) if is_short else None
        if value is None:
            value = codec.read(frame, at, *sizes)
            if is_short:
                self.block_of(value)
        return value


class ListField(PointerField):
    """A list of structs: their heads one behind the other, then their contents."""

    def __init__(self, element: type[Any], to_wire: Check = list, from_wire: Check = list) -> None:
        self.codec = struct_codec(element)
        self._to_wire = to_wire
        self._from_wire = from_wire

    def wires(self, name: str) -> list[tuple[str, str, str]]:
        return [(name, f"List({self.codec.name})", "")]

    def write(self, value: Any, _count: int, out: list[bytes], pointers: list[int], offset: int) -> int:
        elements = self._to_wire(value)
        if not elements:
            pointers.append(0)
            return offset - 1
        codec = self.codec
        count = limit_entries(len(elements))
        size = codec.words
        heads = [struct.pack("<Q", struct_pointer(codec.data_words, codec.pointer_words, count))]
        at = len(out)
        out.append(b"")
        inner = codec.pointer_words - 1 + (count - 1) * size
        for element in elements:
            head, inner = codec.write(element, out, inner)
            heads.append(head)
            inner += codec.pointer_words - size
        out[at] = b"".join(heads)
        pointers.append(list_pointer(count * size, STRUCTS, offset))
        return offset + count * size + inner - codec.pointer_words + 1 + size

    def read(self, frame: Frame, pointers: Pointers, index: int, origin: int, _count: int) -> Any:
        at, words = frame.list_at(pointers[index], origin + WORD_BYTES * (index + 1), STRUCTS)
        if not pointers[index]:
            return self._from_wire([])
        tag = frame.word(at)
        count = check_entries((tag & 0xFFFF_FFFF) >> 2)
        data_words, pointer_words = tag >> 32 & 0xFFFF, tag >> 48
        size = data_words + pointer_words
        if tag & 3 or count * size > words:
            raise ValueError("a list does not have the entries that it claims")
        at += WORD_BYTES
        step = WORD_BYTES * size
        read = self.codec.read
        return self._from_wire([read(frame, at + step * entry, data_words, pointer_words) for entry in range(count)])


_codecs: dict[type[Any], StructCodec] = {}


def struct_codec(of: type[Any]) -> StructCodec:
    """Return the codec of a dataclass or a NamedTuple."""
    codec = _codecs.get(of)
    if codec is None:
        codec = _codecs[of] = StructCodec(of)
    return codec


def codec_of(name: str, hint: Any) -> Scalar | PointerField:
    """Return the codec of a field that is declared with this type."""
    marks = getattr(hint, "__metadata__", ())
    if marks:
        mark = marks[0]
        return ListField(mark.element, mark.to_wire, mark.from_wire) if isinstance(mark, PartList) else mark
    if isinstance(hint, UnionType):
        return StructField(UnionCodec(name.capitalize(), get_args(hint)))
    if get_origin(hint) is list:
        return ListField(*get_args(hint))
    if isinstance(hint, type) and is_dataclass(hint):
        return InternedField(hint) if hint.__hash__ is not None else StructField(hint)
    if issubclass(hint, StrEnum):
        return EnumField(hint)
    return _PLAIN[hint]


_PLAIN: dict[type[Any], Scalar | PointerField] = {bool: Scalar("?", "Bool"), bytes: BYTE_STRING, str: TEXT}


def _hints(of: type[Any]) -> Iterator[tuple[str, Any]]:
    if is_dataclass(of):
        yield from ((field.name, field.type) for field in fields(of))
    else:
        yield from of.__annotations__.items()


def _taker(of: type[Any], declared: list[str], names: list[str]) -> Callable[[Any], Sequence[Any]]:
    """Return what takes the fields of these names out of a value, in this order."""
    if not names:
        return lambda _value: ()
    get = itemgetter(*map(declared.index, names)) if issubclass(of, tuple) else attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _data_section(codes: Sequence[str]) -> tuple[str, int, list[int | None], list[tuple[int, int, int]]]:
    """Lay scalars out as Cap'n Proto does: each one in the first hole of its size, or in a new word.

    Return the layout for `struct`, the number of words, the scalar of each number of that layout (None for a byte of
    truth values), and for each truth value its scalar, the number that holds it, and its bit.
    """
    holes: dict[int, int] = {}
    words = 0

    def allocate(bits: int) -> int:
        """Return a place of this size, in multiples of the size."""
        nonlocal words
        if bits in holes:
            return holes.pop(bits)
        if bits == 64:
            words += 1
            return words - 1
        place = 2 * allocate(2 * bits)
        holes[bits] = place + 1
        return place

    by_byte: dict[int, tuple[str, int | None]] = {}
    places: list[tuple[int, int]] = []
    for index, code in enumerate(codes):
        if code == "?":
            place = allocate(1)
            places.append((index, place))
            by_byte[place // 8] = ("B", None)
        else:
            size = struct.calcsize(code)
            by_byte[size * allocate(8 * size)] = (code, index)
    layout, end = "", 0
    for byte, (code, _) in sorted(by_byte.items()):
        layout += f"{byte - end}x{code}"
        end = byte + struct.calcsize(code)
    slots = sorted(by_byte)
    bits = [(index, slots.index(place // 8), 1 << place % 8) for index, place in places]
    return f"{layout}{WORD_BYTES * words - end}x", words, [by_byte[byte][1] for byte in slots], bits
