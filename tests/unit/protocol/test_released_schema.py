"""The wire and file formats of the last release, in `released_schema.txt`, against the current declarations.

Peers and files of one `PROTOCOL_VERSION` read each other, so within it the schema only grows. With each release,
`pytest tests/unit/protocol/test_released_schema.py --rewrite` writes the file; numbers of removed messages stay in it.
Between releases, write it only while no release has today's `PROTOCOL_VERSION`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from scaler.extensions.history import minutes
from scaler.monitor import cluster_rows, data_rows, history_rows
from scaler.monitor import messages as monitor_messages
from scaler.object_storage import messages as storage_messages
from scaler.plugins import extensions
from scaler.protocol import fields as f
from scaler.protocol import messages as m
from scaler.protocol.structs import StructCodec, struct_codec
from tests.unit.protocol.schema import NAMES_IN_SCHEMA, schema, wires

RELEASED = Path(__file__).with_name("released_schema.txt")
OF_EXTENSIONS = [*(sys.modules[table.kind.__module__] for each in extensions() for table in each.found)]
ROWS = (data_rows, history_rows, cluster_rows, minutes, *OF_EXTENSIONS)
POSITIONAL = ("ObjectRow", "LogRow", "MinuteRow", "EventRow", "FunctionTimesRow")
"""Rows that are sent or stored in the history without the names of their columns."""
_DECLARATION = re.compile(r"^(struct|enum) (\w+) \{|^ +(\w+) @(\d+)(?: :([^;]+))?;", re.MULTILINE)
_NUMBER = re.compile(r"message (\w+) (?:has|had) the number (\d+)")


def declared() -> Iterator[str]:
    """Yield each fact of the schema on a separate line."""
    yield f"protocol {m.PROTOCOL_VERSION}"
    kind = name = ""
    for new_kind, new_name, member, number, of in _DECLARATION.findall(schema()):
        kind, name = new_kind or kind, new_name or name
        if of == "Void":
            continue
        if member and name == "Body":
            yield f"message {of} has the number {number}"
        elif member:
            yield f"{kind} {name} has {member} {of}".rstrip() + f" at {number}"
    for flag, kinds in (("a batch", m.BATCHES), ("a carrier", m.CARRIERS), ("unsequenced", m.UNSEQUENCED)):
        yield from (f"message {of.__name__} is {flag}" for of in kinds)
    for way, table in (("to", m.MAY_SEND), ("from", m.MAY_ANSWER)):
        for server, roles in table.items():
            for role, kinds in roles.items():
                yield from (f"message {of.__name__} goes {way} the {server} with a {role}" for of in kinds)
    for row in rows():
        hints = get_type_hints(row)
        for at, each in enumerate(row._fields):
            place = f" at {at}" * (row.__name__ in POSITIONAL)
            yield f"row {row.__name__} has {each} {shown(hints[each])}{place}"


def rows() -> Iterator[Any]:
    """Yield the classes of rows for monitors and the history."""
    found = {each for module in ROWS for each in vars(module).values() if isinstance(each, type)}
    yield from sorted((each for each in found if each.__name__.endswith("Row")), key=lambda each: each.__name__)


def shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def numbers(lines: set[str]) -> dict[int, str]:
    return {int(number): name for name, number in _NUMBER.findall("\n".join(lines))}


def differences(released: set[str], today: set[str]) -> list[str]:
    """Return all changes except additions."""
    version, now = (int(re.search(r"protocol (\d+)", "\n".join(each))[1]) for each in (released, today))  # type: ignore[index]
    again = [
        f"the number {number} was {name}'s, now it is {numbers(today)[number]}'s"
        for number, name in numbers(released).items()
        if numbers(today).get(number, name) != name
    ]
    if now > version:
        return again
    gone = sorted(line for line in released - today if " had the number " not in line)
    return again + [f"no longer: {line}" for line in gone]


def added(released: set[str]) -> Iterator[tuple[StructCodec, str]]:
    """Yield the fields added to structs since the last release."""
    known = {line.split()[1] for line in released if line.startswith("struct ")}
    for name in sorted(known):
        codec = struct_codec({**vars(monitor_messages), **vars(storage_messages), **vars(m)}[name])
        for each, field in codec.fields.items():
            words = NAMES_IN_SCHEMA.get(each, each).split("_")
            found = {wire for wire, _, _ in wires(field, "".join(map(str.title, words)))}
            if not any(f"struct {name} has {wire[0].lower()}{wire[1:]} " in "\n".join(released) for wire in found):
                yield codec, each


def why_not_readable(codec: StructCodec, name: str) -> str:
    """Return why a field cannot be read from a message without it; empty if it can."""
    declared = fields(codec.type) if is_dataclass(codec.type) else ()
    defaults = dict(getattr(codec.type, "_field_defaults", {}))
    for each in declared:
        if each.default_factory is not MISSING:
            defaults[each.name] = each.default_factory()
        elif each.default is not MISSING:
            defaults[each.name] = each.default
    if name not in defaults:
        return f"{codec.type.__name__}.{name} is new and has no default"
    field = codec.fields[name]
    try:
        if isinstance(field, f.Scalar):
            absent = field.from_wire(0 if field.code != "?" else False)
        else:
            absent = field.read(f.Frame(bytes(16), [8, 16], 8), iter([(0, 8)] * field.pointers), 1)
    except ValueError as error:
        return f"{codec.type.__name__}.{name} is new, and senders that do not have it cannot be read: {error}"
    if absent != defaults[name]:
        return (
            f"{codec.type.__name__}.{name} is new: it reads as {absent!r} from senders without it, not as its default"
        )
    return ""


def test_schema_has_only_grown_since_the_last_release(request: pytest.FixtureRequest) -> None:
    today = set(declared())
    released = set(RELEASED.read_text().splitlines()) if RELEASED.exists() else {"protocol 0"}
    if request.config.getoption("--rewrite"):
        assert [text for text in differences(released, today) if text.startswith("the number")] == []
        old = {f"message {name} had the number {number}" for number, name in numbers(released).items()}
        old = {line for line in old if line.replace(" had ", " has ") not in today}
        RELEASED.write_text("".join(f"{line}\n" for line in sorted(today | old)))
        return
    assert differences(released, today) == [], "raise PROTOCOL_VERSION, only add, or see the head of this module"


def test_reads_messages_of_the_last_release_without_new_fields() -> None:
    released = set(RELEASED.read_text().splitlines())
    if f"protocol {m.PROTOCOL_VERSION}" in released:
        assert [text for each in added(released) if (text := why_not_readable(*each))] == []
