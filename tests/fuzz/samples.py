"""One message of each type with all fields filled, generated from the declarations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from scaler.ids import TASK_KIND, content_id
from scaler.protocol import fields as f
from scaler.protocol import messages as m


@dataclass(frozen=True)
class Sampler:
    """Values for the messages.

    peer: owner of task and object ids. data: value of all bytes fields and payloads. text: value of all texts. rows:
    length of every column. choice: index into the values of an enumeration, or into the structs of a union.
    """

    peer: bytes = b"hostile."
    data: bytes = b"\x80data"
    text: str = "text"
    rows: int = 2
    choice: int = 0

    def message(self, kind: type[m.Message], **given: Any) -> m.Message:
        made: m.Message = self._struct(kind, given)
        return made

    def id(self, number: int = 0) -> bytes:
        return self.peer + TASK_KIND + number.to_bytes(6, "big")

    def _struct(self, kind: type[Any], given: dict[str, Any]) -> Any:
        hints = {each.name: each.type for each in fields(kind)} if is_dataclass(kind) else kind.__annotations__
        values = {name: given[name] if name in given else self._value(hint, name) for name, hint in hints.items()}
        return kind(**values)

    def _value(self, hint: Any, name: str) -> Any:
        for known, make in _SPECIAL.items():
            if hint == known:
                return make(self)
        if marks := getattr(hint, "__metadata__", ()):
            mark = marks[0]
            if isinstance(mark, f.PartList):
                return self._parts(mark)
            if isinstance(mark, f.Numbers):
                return [1] * self.rows
            # An id's note begins with its length.
            return (self.peer if mark.note.startswith("8 ") else self.id()) if isinstance(mark, f.Data) else 1
        if isinstance(hint, UnionType):
            choices = [each for each in get_args(hint) if each is not NoneType]
            return self._struct(choices[self.choice % len(choices)], {})
        if get_origin(hint) is list:
            return [self._struct(get_args(hint)[0], {})]
        if isinstance(hint, type) and issubclass(hint, Enum):
            members = list(hint)
            return members[self.choice % len(members)]
        if isinstance(hint, type) and is_dataclass(hint):
            return self._struct(hint, {})
        return {bool: True, bytes: self.data, str: self.text}[hint]

    def _parts(self, mark: f.PartList) -> Any:
        if is_dataclass(mark.element):
            return [self._struct(mark.element, {})]
        if mark.element is m.AnnouncedFunction:
            return [(content_id(self.data), self.data)]
        if mark.element is m.UnitId:
            return [self.text]
        if mark.element is m.PeerName:
            return [self.peer]
        if mark.element is m.RetryDelay:
            return (1.0,)
        if mark.element is m.TaskTag:
            return (self.text,)
        if mark.element is m.ImportedPackage:
            return ((self.text, self.text),)
        return ((self.text, 1.0),) if mark.from_wire is f.needs_of else {self.text: 1.0}


_SPECIAL: dict[Any, Callable[[Sampler], Any]] = {
    f.Ids: lambda made: [made.id(number) for number in range(made.rows)],
    f.Payloads: lambda made: [made.data] * made.rows,
    f.RaggedIds: lambda made: [(made.id(),)] * made.rows,
    f.Devices: lambda made: [(1,)] * made.rows,
    f.RaggedPayloads: lambda made: [(made.data,)] * made.rows,
}


def every_message(sampler: Sampler) -> list[m.Message]:
    return [sampler.message(kind) for kind in m.NUMBERS]
