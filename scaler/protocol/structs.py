"""Struct codecs: lay out a declaration as a Cap'n Proto struct, as Cap'n Proto's compiler does. A struct is a *head*
(data section, then pointers) and the content of its pointers. Writes a single segment, and reads any valid layout."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import count
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from scaler.errors import LimitError
from scaler.protocol import fields as f
from scaler.protocol.fields import STRUCTS, WORD_BYTES, Check, Frame, Links, PointerField, Scalar, Writer

MAX_INTERNED = 1024
"""Maximum cached structs. Above this, the cache is cleared."""
MAX_INTERNED_BYTES = 1024


class StructCodec:
    """Codec for a message or a part of a message, declared as a dataclass or NamedTuple.

    On the wire, scalars precede pointers, each in order of declaration, but payloads follow the other columns and an
    interned struct is last. A scalar declared after payloads was added later, so its number in the schema is higher
    than theirs.
    """

    def __init__(self, of: type[Any]) -> None:
        hints = of.__annotations__
        if is_dataclass(of):  # keyword-only fields, declared in base classes, are last
            hints = {field.name: field.type for field in sorted(fields(of), key=lambda field: field.kw_only is True)}
        declared = {name: codec_of(hint) for name, hint in hints.items()}
        self.type = of
        self.names = list(declared)
        columns = [number for number, codec in enumerate(declared.values()) if codec is f.PAYLOAD_COLUMN]

        def place(numbered: tuple[int, tuple[str, Scalar | PointerField]]) -> tuple[bool, bool]:
            number, (_, codec) = numbered
            is_behind = bool(columns) and number > columns[-1] and isinstance(codec, Scalar)
            return isinstance(codec, InternedField), codec is f.PAYLOAD_COLUMN or is_behind

        self.fields = dict(each for _, each in sorted(enumerate(declared.items()), key=place))
        self.scalars = {name: codec for name, codec in self.fields.items() if isinstance(codec, Scalar)}
        self.pointers = {name: codec for name, codec in self.fields.items() if isinstance(codec, PointerField)}
        self.pointer_words = sum(codec.pointers for codec in self.pointers.values())
        layout, self.data_words, self._numbers, self._bits = _data_section(self.scalars)
        self.words = self.data_words + self.pointer_words
        self._head = struct.Struct(f"<{layout}{self.pointer_words}Q")
        self._checked = [(name, codec) for name, codec in self.scalars.items() if codec.to_wire is not f.same]

    def write(self, value: Any, out: list[bytes], offset: int) -> tuple[bytes, int]:
        """Append the content to `out`. Returns the head, and the offset at the end of the content. offset: words from
        the end of the first pointer to the content."""
        pointers: list[int] = []
        name = ""
        try:
            scalars = {name: getattr(value, name) for name in self.scalars}
            for name, codec in self._checked:
                scalars[name] = codec.to_wire(scalars[name])
            if self.pointers:
                to = Writer(out, pointers, offset, len(value.ids) if "ids" in self.pointers else 0)
                for name, field in self.pointers.items():
                    field.write(getattr(value, name), to)
                offset = to.offset
            name = "its numbers"
            numbers = [scalars.get(name, 0) for name in self._numbers]
            for flag, (index, bit) in self._bits.items():
                if scalars[flag]:
                    numbers[index] |= bit
            return self._head.pack(*numbers, *pointers), offset
        except (ValueError, struct.error) as error:
            raise ValueError(f"{name}: {error}") from error

    def read(self, frame: Frame, at: int, data_words: int, pointer_words: int) -> Any:
        origin = at + WORD_BYTES * data_words
        if data_words == self.data_words and pointer_words == self.pointer_words:
            head = self._head.unpack_from(frame.body, at)
        else:  # from another version, or without trailing zero words
            sections = ((at, data_words, self.data_words), (origin, pointer_words, self.pointer_words))
            head = self._head.unpack(
                b"".join(
                    frame.body[start : start + WORD_BYTES * min(words, wanted)].ljust(WORD_BYTES * wanted, b"\0")
                    for start, words, wanted in sections
                )
            )
        values = dict(zip(self._numbers, head, strict=False))
        for name, (index, bit) in self._bits.items():
            values[name] = bool(head[index] & bit)
        values.pop("", None)
        pointers = head[len(self._numbers) :]
        links: Links = zip(pointers, count(origin + WORD_BYTES, WORD_BYTES), strict=False) if pointers else iter(())
        rows = 0
        try:
            for name, codec in self._checked:
                values[name] = codec.from_wire(values[name])
            for name, field in self.pointers.items():
                value = values[name] = field.read(frame, links, rows)
                if name == "ids":
                    rows = len(value)
        except (ValueError, struct.error) as error:
            raise ValueError(f"{name}: {error}") from error
        return self.type(**values)


class StructField(PointerField):
    def __init__(self, of: type[Any]) -> None:
        super().__init__(of.__name__)
        self.codec = struct_codec(of)

    def block_of(self, value: Any) -> bytes:
        out = [b""]
        out[0], _ = self.codec.write(value, out, self.codec.pointer_words - 1)
        return b"".join(out)

    def write(self, value: Any, to: Writer) -> None:
        block = self.block_of(value)
        to.out.append(block)
        pointer = f.struct_pointer(self.codec.data_words, self.codec.pointer_words, to.offset)
        to.add(pointer, len(block) // WORD_BYTES)

    def read(self, frame: Frame, links: Links, _count: int) -> Any:
        return self.codec.read(frame, *frame.struct_at(*next(links)))


class OptionalStruct(PointerField):
    """One of several structs, or None. Has a pointer for each struct; at most one pointer is set."""

    def __init__(self, types: Sequence[type[Any]]) -> None:
        super().__init__()
        self.options = {of: StructField(of) for of in types if of is not NoneType}
        self.pointers = len(self.options)

    def write(self, value: Any, to: Writer) -> None:
        for of, field in self.options.items():
            if type(value) is of:
                field.write(value, to)
            else:
                to.add(0, 0)

    def read(self, frame: Frame, links: Links, count: int) -> Any:
        found = [(field, link) for field, link in zip(self.options.values(), links, strict=False) if link[0]]
        if len(found) > 1:
            raise ValueError(f"{len(found)} pointers are set")
        return found[0][0].read(frame, iter([found[0][1]]), count) if found else None


class InternedField(StructField):
    """An immutable struct that many messages repeat, so its bytes are cached in both directions. The struct is last in
    its message. Its bytes contain no outside pointers, so they are valid at any position."""

    def __init__(self, of: type[Any]) -> None:
        super().__init__(of)
        self.blocks: dict[Any, bytes] = {}
        self.values: dict[bytes, Any] = {}

    def block_of(self, value: Any) -> bytes:
        found = self.blocks.get(value)
        if found is None:
            found = super().block_of(value)
            if len(found) <= MAX_INTERNED_BYTES:
                if len(self.blocks) >= MAX_INTERNED:
                    self.blocks.clear()
                    self.values.clear()
                self.blocks[value] = found
                self.values[found] = value
        return found

    def read(self, frame: Frame, links: Links, _count: int) -> Any:
        codec = self.codec
        at, *sizes = frame.struct_at(*next(links))
        is_short = len(frame.body) - at <= MAX_INTERNED_BYTES and sizes == [codec.data_words, codec.pointer_words]
        value = self.values.get(frame.body[at:]) if is_short else None
        if value is None:
            value = codec.read(frame, at, *sizes)
            if is_short:
                self.block_of(value)
        return value


class ListField(PointerField):
    """A list of structs: all heads, then all contents."""

    def __init__(self, element: type[Any], to_wire: Check = list, from_wire: Check = list, rows: int = 1) -> None:
        super().__init__(f"List({element.__name__})")
        self._rows = rows
        self.codec = struct_codec(element)
        self._to_wire = to_wire
        self._part: Check = getattr(element, "_make", f.same)
        self._from_wire = from_wire

    def write(self, value: Any, to: Writer) -> None:
        elements = self._to_wire(value)
        codec, entries = self.codec, len(elements)
        if not entries:
            to.add(0, 0)
            return
        if entries > f.MAX_ENTRIES:
            raise LimitError(f"{entries} entries are more than MAX_ENTRIES ({f.MAX_ENTRIES}) in one message")
        heads = [f.struct_pointer(codec.data_words, codec.pointer_words, entries).to_bytes(WORD_BYTES, "little")]
        at = len(to.out)
        to.out.append(b"")
        words = entries * codec.words
        behind = words  # words from the first head to the end of the contents so far
        for number, element in enumerate(elements):
            pointers_end = number * codec.words + codec.data_words + 1
            head, inner = codec.write(self._part(element), to.out, behind - pointers_end)
            heads.append(head)
            behind = pointers_end + codec.pointer_words + inner
        to.out[at] = b"".join(heads)
        to.add(f.list_pointer(words, STRUCTS, to.offset), 1 + behind)

    def read(self, frame: Frame, links: Links, _count: int) -> Any:
        pointer, after = next(links)
        at, words = frame.list_at(pointer, after, STRUCTS)
        if not pointer:
            return self._from_wire([])
        tag = frame.word(at)
        entries = (tag & 0xFFFF_FFFF) >> 2
        if entries > f.MAX_ENTRIES:
            raise ValueError(f"{entries} entries are more than MAX_ENTRIES ({f.MAX_ENTRIES})")
        data_words, pointer_words = tag >> 32 & 0xFFFF, tag >> 48
        size = data_words + pointer_words
        if tag & 3 or entries * size > words:
            raise ValueError("a list does not contain the entries that it announces")
        frame.spend_rows(entries * self._rows)
        if not size:  # an empty entry costs as much work as any other
            frame.spend(entries * max(1, self.codec.words))
        at += WORD_BYTES
        step = WORD_BYTES * size
        read = self.codec.read
        return self._from_wire([read(frame, at + step * entry, data_words, pointer_words) for entry in range(entries)])


_codecs: dict[type[Any], StructCodec] = {}


def struct_codec(of: type[Any]) -> StructCodec:
    codec = _codecs.get(of)
    if codec is None:
        codec = _codecs[of] = StructCodec(of)
    return codec


def codec_of(hint: Any) -> Scalar | PointerField:
    if marks := getattr(hint, "__metadata__", ()):
        (mark,) = marks
        return ListField(*mark) if isinstance(mark, f.PartList) else mark
    if isinstance(hint, UnionType):
        return OptionalStruct(get_args(hint))
    if get_origin(hint) is list:
        return ListField(*get_args(hint))
    if isinstance(hint, type) and is_dataclass(hint):
        return InternedField(hint) if hint.__hash__ is not None else StructField(hint)
    return f.enum_field(hint) if issubclass(hint, StrEnum) else _PLAIN[hint]


_PLAIN: dict[type[Any], Scalar | PointerField] = {bool: Scalar("Bool"), bytes: f.BYTE_STRING, str: f.TEXT}


def _data_section(scalars: Mapping[str, Scalar]) -> tuple[str, int, list[str], dict[str, tuple[int, int]]]:
    """Lay out scalars as Cap'n Proto does: each in the first hole of its size, or in a new word. Returns the format for
    `struct`, the number of words, the name of each number in the format ("" for a byte of booleans), and the number's
    index and the bit for each boolean.
    """
    holes: dict[int, int] = {}
    words = 0

    def allocate(bits: int) -> int:
        nonlocal words
        if bits in holes:
            return holes.pop(bits)
        if bits == 64:
            words += 1
            return words - 1
        offset = 2 * allocate(2 * bits)
        holes[bits] = offset + 1
        return offset

    numbers: dict[int, tuple[str, str]] = {}
    flags: dict[str, int] = {}
    for name, scalar in scalars.items():
        if scalar.code == "?":
            flags[name] = allocate(1)
            numbers[flags[name] // 8] = ("B", "")
        else:
            size = struct.calcsize(scalar.code)
            numbers[size * allocate(8 * size)] = (scalar.code, name)
    layout, end = "", 0
    for byte, (code, _) in sorted(numbers.items()):
        layout += f"{byte - end}x{code}"
        end = byte + struct.calcsize(code)
    order = sorted(numbers)
    bits = {name: (order.index(bit // 8), 1 << bit % 8) for name, bit in flags.items()}
    return f"{layout}{WORD_BYTES * words - end}x", words, [numbers[byte][1] for byte in order], bits
