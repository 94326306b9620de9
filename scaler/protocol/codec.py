"""Converts between messages and bytes: `encode` and `decode`. Decoding is eager, so the result does not reference the
frame. Input from peers is untrusted: any error raises ProtocolError.

Messages about a single task have a fast path, because a user may be waiting for that task. Almost all bytes of such a
message are constant, so a single `struct` can write them, or read and compare them, in a fifth of the time. Like the
methods of dataclasses, the functions of the fast path are generated as source text from the declaration. All other
messages use the general codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from scaler.errors import LimitError, ProtocolError
from scaler.ids import ID_BYTES
from scaler.protocol import fields as f
from scaler.protocol.fields import BYTES, WORD_BYTES, Frame
from scaler.protocol.messages import (
    BATCHES,
    MAX_BATCH_BYTES,
    MAX_CONTROL_BYTES,
    MAX_HELLO_BYTES,
    MESSAGES,
    NUMBERS,
    Hello,
    Message,
    Submit,
)
from scaler.protocol.structs import InternedField, ListField, StructCodec, struct_codec

MIN_TRAVERSAL_WORDS = 8 * 1024
"""Maximum words read from a body, or four times the body's size if larger. Rejects overlapping parts."""
MAX_SEGMENTS = 512
MAX_SINGLE_PAYLOAD_BYTES = 64 * 1024

_FRAME = struct.Struct("<4Q")
_BODY_POINTER = f.struct_pointer(1, 1, 0)
"""A body is a word with the message number, and a pointer to the message."""
_START = slice(8, 32)
"""Bytes that all bodies of a message type share, after the length word."""

_Write = Callable[[Any], bytes | None]
_Read = Callable[[bytes], Message | None]


class _Wire(NamedTuple):
    name: str
    number: int
    codec: StructCodec
    largest: int
    limit: str
    write_single: _Write | None


_wires: dict[type[Message], _Wire] = {}
_single_readers: dict[bytes, _Read] = {}


def encode(message: Message) -> bytes:
    """Encode a message. Raises LimitError if it is too large, and ValueError if it violates a rule, for example if its
    columns differ in length."""
    wire = _wires.get(type(message)) or _wire(type(message))
    codec = wire.codec
    try:
        body = wire.write_single(message) if wire.write_single is not None else None
        if body is None:
            out = [b"", b""]
            out[1], offset = codec.write(message, out, codec.pointer_words - 1)
            pointer = f.struct_pointer(codec.data_words, codec.pointer_words, 0)
            out[0] = _FRAME.pack((4 + codec.words + offset) << 32, _BODY_POINTER, wire.number, pointer)
            body = b"".join(out)
    except (ValueError, struct.error) as error:
        raise ValueError(f"{wire.name} has a field that cannot be encoded: {error}") from error
    if len(body) > wire.largest:
        raise LimitError(f"{wire.name} of {len(body)} bytes is larger than {wire.limit} ({wire.largest})")
    return body


def decode(body: bytes | memoryview) -> Message:
    """Decode a message. Raises ProtocolError unless the body is one well-formed message within the limits."""
    size = len(body) if isinstance(body, bytes) else body.nbytes
    if size > MAX_BATCH_BYTES:
        raise ProtocolError(f"a body of {size} bytes is larger than MAX_BATCH_BYTES ({MAX_BATCH_BYTES})")
    whole = bytes(body)
    read_single = _single_readers.get(whole[_START])
    if read_single is not None and (single := read_single(whole)) is not None:
        return single
    name = "message"
    try:
        frame = _open(whole)
        first = frame.bases[0]
        at, data_words, pointer_words = frame.struct_at(frame.word(first), first + WORD_BYTES)
        number = frame.word(at) & 0xFFFF if data_words else 0
        kind = MESSAGES.get(number)
        if kind is None:
            raise ValueError(f"number {number} is unknown: the sender may run a later version of scaler")
        wire = _wires.get(kind) or _wire(kind)
        name = wire.name
        if size > wire.largest:
            raise ProtocolError(f"{name} of {size} bytes is larger than {wire.limit} ({wire.largest})")
        at += WORD_BYTES * data_words
        pointer = frame.word(at) if pointer_words else 0
        if kind is Submit:
            frame.budget_rows = f.MAX_ROWS
        message: Message = wire.codec.read(frame, *frame.struct_at(pointer, at + WORD_BYTES))
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"malformed {name}: {error}") from error
    return message


def _open(body: bytes) -> Frame:
    size = len(body)
    if size < 2 * WORD_BYTES or size % WORD_BYTES:
        raise ValueError(f"size {size} is not a multiple of 8 bytes, or is below 16")
    count = int.from_bytes(body[:4], "little") + 1
    if count > MAX_SEGMENTS or 4 * count + 4 > size:
        raise ValueError(f"too many segments: {count}")
    first = (4 * count + 11) // WORD_BYTES * WORD_BYTES
    words = struct.unpack_from(f"<{count}I", body, 4)
    bases = list(accumulate((WORD_BYTES * each for each in words), initial=first))
    if bases[-1] != size or not words[0]:
        raise ValueError(f"size {size} does not match the size of its segments, {bases[-1]}")
    return Frame(body, bases, max(MIN_TRAVERSAL_WORDS, size // WORD_BYTES * 4))


def prepare(*kinds: type[Message]) -> None:
    """Build codecs in advance, so that forked processes inherit them."""
    for kind in kinds:
        _wire(kind)


def _wire(of: type[Message]) -> _Wire:
    largest = (MAX_BATCH_BYTES, "MAX_BATCH_BYTES") if of in BATCHES else (MAX_CONTROL_BYTES, "MAX_CONTROL_BYTES")
    if of is Hello:
        largest = (MAX_HELLO_BYTES, "MAX_HELLO_BYTES")
    number, codec = NUMBERS[of], struct_codec(of)
    write_single = _single_path(number, codec) if of in BATCHES else None
    wire = _wires[of] = _Wire(of.__name__, number, codec, *largest, write_single)
    return wire


_SOURCE = """
def write(message):
    {find_rows}
    if {others}:
        return None
    try:
        {entries} = {columns}
    except ValueError:
        return None
    size = len({payload})
    if not (0 < size <= {largest} and {rules}):
        return None
    blob_words = size + 7 >> 3
    block = {block_of}
    return b"".join((pack({values}), {payload}, PADDING[-size & 7], block))


def read(body):
    if len(body) < {length}:
        return None
    {targets} = unpack_from(body)
    blob_words = size + 7 >> 3
    if {mismatches} or not (0 < size <= {largest}):
        return None
    {payload} = body[{length} : {length} + size]
    block = body[{length} + 8 * blob_words :]
    if not ({rules}):
        return None
    {find_block}
    return {message}
"""


@dataclass(slots=True)
class _Source:
    """Words of a message, in order, and fragments of source that write, read, and validate them. words: struct code,
    variable name for reading, expression for writing, and the only valid value (or "")."""

    words: list[tuple[str, str, str, str]] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    payload: str = ""
    block_of: str = 'b""'
    find_block: str = "if block: return None"
    names: dict[str, Any] = field(default_factory=lambda: {"PADDING": f.PADDING})

    def constant(self, *words: int) -> None:
        data = repr(struct.pack(f"<{len(words)}Q", *words))
        self.words.append((f"{WORD_BYTES * len(words)}s", f"constant_{len(self.words)}", data, data))

    def known(self, name: str, value: str, expected: str = "") -> None:
        self.words.append(("Q", name, value, expected or value))

    def rows(self, rows: StructCodec) -> None:
        offset = rows.pointer_words - 1
        for name, codec in rows.pointers.items():
            self.made[name] = f"[{name}]"
            if codec is f.ID_COLUMN:
                self.constant(f.list_pointer(ID_BYTES, BYTES, offset))
                offset += 1
                self.columns[name] = f"{ID_BYTES}s"
                self.rules.append(f"len({name}) == {ID_BYTES}")
            elif isinstance(codec, f.Numbers) and (codec.is_usual or not codec.is_optional):
                self.constant(f.list_pointer(1, codec.size, offset))
                self.columns[name] = f"{codec.code}{WORD_BYTES - struct.calcsize(codec.code)}x"
                self.names[f"allowed_{name}"] = codec.allowed or range(codec.largest + 1)
                self.rules.append(f"{name} in allowed_{name}")
            elif codec is f.PAYLOAD_COLUMN:
                self.constant(f.list_pointer(1, f.U32, offset))
                self.known("blob", f"(size << 35 | {f.list_pointer(0, BYTES, offset)})")
                offset -= 1
                self.payload, self.columns[name] = name, "I4x"
            elif isinstance(codec, InternedField):
                inner = codec.codec
                pointer = f.struct_pointer(inner.data_words, inner.pointer_words, offset)
                self.known("interned", f"{pointer} + (blob_words << 2)")
                self.names |= {"block_of": codec.block_of, "blocks": codec.blocks, "known": codec.values}
                self.block_of, self.made[name] = f"blocks.get(row.{name}) or block_of(row.{name})", name
                self.find_block = f"if ({name} := known.get(block)) is None: return None"
            else:
                self.constant(*[0] * codec.pointers)
                offset -= codec.pointers
                self.empty.append(f"row.{name}")
                self.made[name] = "[]"
        for name, code in self.columns.items():
            value = "size" if name == self.payload else name
            self.words.append((code, value, value, ""))

    def compiled(self, find_rows: str, top: StructCodec, rows: StructCodec) -> dict[str, Any]:
        codes, targets, values, _ = zip(*self.words, strict=True)
        layout = struct.Struct("<" + "".join(codes))
        names = self.names | {"message_type": top.type, "row_type": rows.type}
        names |= {"pack": layout.pack, "unpack_from": layout.unpack_from}
        text = _SOURCE.format(
            find_rows=find_rows,
            others=" or ".join(self.empty),
            entries=", ".join(f"({name},)" for name in self.columns),
            columns=", ".join(f"row.{name}" for name in self.columns),
            rules=" and ".join(self.rules),
            values=", ".join(values).replace("LENGTH", str(layout.size // WORD_BYTES - 1)),
            targets=", ".join(targets),
            mismatches=" or ".join(f"{target} != {known}" for _, target, _, known in self.words if known),
            length=layout.size,
            largest=MAX_SINGLE_PAYLOAD_BYTES,
            payload=self.payload,
            block_of=self.block_of,
            find_block=self.find_block,
            message=f"message_type({', '.join(self.made[name] for name in top.names)})",
        )
        exec(text, names)  # noqa: S102 (made of declarations only)
        return names


def _single_path(number: int, top: StructCodec) -> _Write | None:
    """Generate the fast path of a message type: register the reader and return the writer. Returns None for messages
    without payloads. The fast path handles messages with exactly one entry per column, without optional columns, ragged
    columns, or other lists, and with a payload that is neither empty nor large. The generated functions return None for
    all other messages, including invalid ones."""
    lists = [(name, codec.codec) for name, codec in top.pointers.items() if isinstance(codec, ListField)]
    group, rows = next((each for each in lists if "ids" in each[1].pointers), ("", top))
    payloads = [name for name, codec in rows.pointers.items() if isinstance(codec, f.PayloadColumn)]
    if "ids" not in rows.pointers or len(payloads) != 1:
        return None
    start = (_BODY_POINTER, number, f.struct_pointer(top.data_words, top.pointer_words, 0))
    source = _Source()
    source.known("segment", "LENGTH + blob_words + len(block) // 8 << 32", "len(body) // 8 - 1 << 32")
    source.constant(*start)
    for name in top.scalars:
        source.words.append(("Q", name, f"message.{name}", ""))
        source.made[name] = name
    find_rows = "row = message"
    if group:
        index = list(top.pointers).index(group)
        pointers = [0] * top.pointer_words
        pointers[index] = f.list_pointer(rows.words, f.STRUCTS, top.pointer_words - 1 - index)
        source.constant(*pointers, f.struct_pointer(0, rows.pointer_words, 1))
        find_rows = f"if len(message.{group}) != 1: return None\n    (row,) = message.{group}"
        source.empty += [f"message.{name}" for name in top.pointers if name != group]
        source.made |= dict.fromkeys(top.pointers, "[]")
    source.rows(rows)
    if not source.payload:
        return None
    if group:
        source.made[group] = f"[row_type({', '.join(source.made[name] for name in rows.names)})]"
    names = source.compiled(find_rows, top, rows)
    _single_readers[struct.pack("<3Q", *start)] = names["read"]
    write: _Write = names["write"]
    return write
