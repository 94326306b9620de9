"""The codec and Cap'n Proto's own library read each other's messages, and agree on any bytes."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

import capnp
import pytest
from hypothesis import given, settings

from scaler.errors import ProtocolError
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode
from scaler.texts import escaped_lines
from tests.properties.test_codec_properties import EVERY, RICH
from tests.unit.protocol.schema import NAMES_IN_SCHEMA
from tests.unit.protocol.test_codec import Body

PAYLOADS = {name: f"{name.removesuffix('s')}Sizes" for name in ("payloads", "texts", "names", "keys", "tags")}

ONES = {"retry_delays": "seconds", "tags": "text", "hosts": "host"} | dict.fromkeys(
    ("drained", "joined", "workers", "left"), "id"
)
"""Lists of structs with one field."""
PAIRS = {"functions": ("id", "payload"), "packages": ("module", "version"), "needs": ("name", "amount")}
"""Lists of pairs, with the names of their two fields."""


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def wire(value: Any) -> Any:
    """Convert a value to the library's form, independently of the codec."""
    if isinstance(value, StrEnum):
        return camel(value.value)
    if not is_dataclass(value):
        return value
    found: dict[str, Any] = {}
    for field in fields(value):
        name, part = field.name, getattr(value, field.name)
        match name:
            case "ids" | "lost" | "named":
                found[name] = b"".join(part)
            case _ if name in ONES and not (name in PAYLOADS and isinstance(part, list)):
                found[camel(name)] = [{ONES[name]: each} for each in part]
            case _ if name in PAYLOADS:
                found[PAYLOADS[name]], found[name] = list(map(len, part)), b"".join(part)
            case "references":
                found["referenceCounts"] = list(map(len, part))
                found[name] = b"".join(chain.from_iterable(part))
            case "inputs" | "labels":
                found[f"{name[:-1]}Counts"] = list(map(len, part))
                found[f"{name[:-1]}Sizes"] = list(map(len, chain.from_iterable(part)))
                found[name] = b"".join(chain.from_iterable(part))
            case "functions" | "packages" | "needs" if not any(map(is_dataclass, part)):
                found[name] = [dict(zip(PAIRS[name], each, strict=True)) for each in part]
            case "capabilities":
                found[name] = [{"name": offer, "amount": amount or 0.0} for offer, amount in part.items()]
            case "devices":
                found["deviceCounts"], found[name] = list(map(len, part)), list(chain.from_iterable(part))
            case "details":
                found |= {} if part is None else {name_of(part): wire(part)}
            case "started" | "suspended" | "once" | "are_stderr" | "outcomes" | "unreachable" if isinstance(part, list):
                found[camel(name)] = list(map(int, part))
            case _ if isinstance(part, list):
                found[camel(name)] = [wire(each) for each in part]
            case _:
                found[camel(NAMES_IN_SCHEMA.get(name, name))] = wire(part)
    return found


def name_of(message: Any) -> str:
    name = type(message).__name__
    return name[0].lower() + name[1:]


def by_the_library(message: m.Message) -> bytes:
    body: bytes = Body.new_message(**{name_of(message): wire(message)}).to_bytes()
    return body


def read_by_the_library(body: bytes) -> dict[str, Any]:
    with Body.from_bytes(body, max(8192, len(body) // 2), 32) as reader:
        found: dict[str, Any] = reader.to_dict(verbose=True)
    return found


def shown(value: Any) -> Any:
    """Convert the library's result to the codec's form of text."""
    match value:
        case str():
            return escaped_lines(value)
        case dict():
            return {name: shown(each) for name, each in value.items()}
        case list():
            return list(map(shown, value))
        case _:
            return value


def full(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a message with these fields in the library's form."""
    return read_by_the_library(Body.new_message(**{kind: value}).to_bytes())


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_objects_written_by_one_are_read_by_the_other(kind: type[Any]) -> None:
    @settings(max_examples=settings().max_examples // 3)
    @given(EVERY[kind])
    def agree(message: m.Message) -> None:
        assert decode(by_the_library(message)) == message
        assert read_by_the_library(encode(message)) == full(name_of(message), wire(message))

    agree()


@pytest.mark.parametrize("kind", RICH, ids=lambda kind: kind.__name__)
def test_mutated_message_is_read_alike_by_both_or_rejected_here(kind: type[Any]) -> None:
    chance = random.Random(kind.__name__)
    read = 0
    for body in (encode(RICH[kind]), by_the_library(RICH[kind])):
        changes = [(place, 1 << bit) for place in range(len(body)) for bit in range(8)]
        for place, bit in chance.sample(changes, min(len(changes), 500)):
            changed = bytearray(body)
            changed[place] ^= bit
            try:
                message = decode(bytes(changed))
            except ProtocolError:
                continue
            assert shown(read_by_the_library(bytes(changed))) == full(name_of(message), wire(message))
            read += 1
    assert read > 12


@pytest.mark.parametrize("message", RICH.values(), ids=lambda message: type(message).__name__)
def test_reads_a_body_in_several_segments(message: m.Message) -> None:
    whole = Body.new_message(**{name_of(message): wire(message)})
    builder = capnp.lib.capnp._MallocMessageBuilder(1)  # noqa: SLF001 (no public function takes a segment size)
    builder.set_root(whole)
    segments = builder.get_segments_for_output()
    assert len(segments) > 1
    table = [len(segments) - 1, *(len(segment) // 8 for segment in segments)]
    head = b"".join(number.to_bytes(4, "little") for number in table)
    assert decode(head + bytes(-len(head) % 8) + b"".join(bytes(segment) for segment in segments)) == message
