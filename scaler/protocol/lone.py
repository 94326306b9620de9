"""Messages about a single task, to and from Cap'n Proto without its library.

A task that travels alone is what somebody waits for, and the library's way to each field is long when nothing of it is
in the processor's caches: 50 us a message. All bytes of such a message but a few have known values in known places, as
the library itself lays them out, so one `struct` writes them, or reads and compares them. Whatever looks different in
any way is left to the library: functions here return None for it, and never say that something is malformed.

Words are 8 bytes. A pointer has an offset in words, from its own end to what it points to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from scaler.ids import ID_BYTES, MAX_ATTEMPT
from scaler.protocol.columns import ANY_OUTCOME, FINAL_OUTCOMES, MAX_U32
from scaler.protocol.messages import Done, Finished, Message, Run, RunGroup, Spec, Submit, TaskGroup

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_SPECS = 1024
"""Specs whose bytes are known; beyond it, all are forgotten, and learned again."""
MAX_SPEC_BYTES = 1024

_HEAD = slice(8, 32)
_MAX_NUMBER = 0xFFFF_FFFF_FFFF_FFFF


def _bytes_pointer(size: int, offset: int) -> int:
    return size << 35 | offset << 2 | 0x2_0000_0001


def _list_pointer(offset: int) -> int:
    """Return a pointer to a list of one pointer."""
    return offset << 2 | 0xE_0000_0001


def _struct_pointer(pointers: int, data: int = 0, offset: int = 0) -> int:
    return pointers << 48 | data << 32 | offset << 2


def _head(wire: int, pointers: int, data: int = 0) -> bytes:
    """Return the pointer to a Body, its data (which message it holds) and its pointer to that."""
    return struct.pack("<3Q", _struct_pointer(1, 1), wire, _struct_pointer(pointers, data))


def _groups(columns: int, spec_offset: int) -> bytes:
    """Return: no functions, a list of one group, the shape of a group, its pointer to its spec."""
    list_of_structs = columns << 35 | 0x7_0000_0001
    one_of_them = _struct_pointer(columns) | 1 << 2
    return struct.pack("<4Q", 0, list_of_structs, one_of_them, _struct_pointer(6, 3, spec_offset))


_NOTHING = bytes(16)
"""Two pointers to nothing: columns that a lone task has not, or not here."""
_U32 = struct.Struct("<I4x")

# segment, head, number, functions and groups and spec, ids, payloads, no references and their counts
_SUBMIT = struct.Struct("<Q24sQ32sQQ16s")
_SUBMIT_HEAD = _head(5, 2, 1)
_SUBMIT_GROUPS = _groups(5, 4)
_SUBMIT_ROW = struct.Struct("<16sQ")
# segment, head, functions and groups and spec, ids, attempts, payloads, no inputs and their counts
_RUN = struct.Struct("<Q24s32sQQQ16s")
_RUN_HEAD = _head(12, 2)
_RUN_GROUPS = _groups(6, 5)
_RUN_ROW = struct.Struct("<16sH6xQ")
_SPEC_AT = 13
"""In words: in both, what the spec consists of lies between the group and its columns."""
# segment, head, columns, durations, no profile, id, attempt, outcome, payload
_DONE = struct.Struct("<Q24s32sQ16s16sH6xB7xQ")
_DONE_HEAD = _head(16, 7)
_DONE_COLUMNS = struct.pack(
    "<4Q", _bytes_pointer(ID_BYTES, 6), _bytes_pointer(2, 7), _bytes_pointer(1, 7), _list_pointer(7)
)
# segment, head, number, columns, durations, no profile, id, outcome, payload
_FINISHED = struct.Struct("<Q24sQ24sQ16s16sB7xQ")
_FINISHED_HEAD = _head(11, 6, 1)
_FINISHED_COLUMNS = struct.pack("<3Q", _bytes_pointer(ID_BYTES, 5), _bytes_pointer(1, 6), _list_pointer(6))


class Specs:
    """The bytes of specs as they lie in a message, and the other way round.

    Only what the library writes for a spec is known for that spec: nothing in it points to anywhere outside of it.
    """

    def __init__(self, write: Callable[[Message], bytes]) -> None:
        """write: the library's way to write any message."""
        self._write = write
        self._bytes: dict[Spec, bytes] = {}
        self._specs: dict[bytes, Spec] = {}

    def bytes_of(self, spec: Spec) -> bytes | None:
        """Return a spec's bytes, None when it is too long, or one of many: a task's own tasks name it in theirs."""
        found = self._bytes.get(spec)
        if found is None and not spec.parent:
            body = self._write(Submit([], [TaskGroup(spec, [bytes(ID_BYTES)], [b"-"])]))
            found = body[_SPEC_AT * 8 : -_SUBMIT_ROW.size - 8]
            if len(found) > MAX_SPEC_BYTES:
                return None
            if len(self._bytes) >= MAX_SPECS:
                self._bytes.clear()
                self._specs.clear()
            self._bytes[spec] = found
            self._specs[found] = spec
        return found

    def spec_of(self, data: bytes) -> Spec | None:
        """Return the spec that these bytes are known for."""
        return self._specs.get(data)


def _padded(payload: bytes) -> bytes:
    return payload + bytes(-len(payload) % 8)


def _fits(ids: list[bytes], payloads: list[bytes]) -> bool:
    return (
        len(ids) == 1 and len(ids[0]) == ID_BYTES and len(payloads) == 1 and 0 < len(payloads[0]) <= MAX_PAYLOAD_BYTES
    )


def _segment(words: int) -> int:
    """Return the first word of a message: one segment of so many words."""
    return words << 32


# -- writing ---------------------------------------------------------------------------------------------------------


def write_submit(submit: Submit, specs: Specs) -> bytes | None:
    if len(submit.groups) != 1 or submit.functions or not 0 <= submit.acknowledged <= _MAX_NUMBER:
        return None
    (group,) = submit.groups
    if group.references or not _fits(group.ids, group.payloads):
        return None
    spec = specs.bytes_of(group.spec)
    if spec is None:
        return None
    words = len(spec) // 8
    payload = group.payloads[0]
    padded = _padded(payload)
    return b"".join(
        (
            _SUBMIT.pack(
                _segment(words + 15 + len(padded) // 8),
                _SUBMIT_HEAD,
                submit.acknowledged,
                _SUBMIT_GROUPS,
                _bytes_pointer(ID_BYTES, words + 3),
                _list_pointer(words + 4),
                _NOTHING,
            ),
            spec,
            _SUBMIT_ROW.pack(group.ids[0], _bytes_pointer(len(payload), 0)),
            padded,
        )
    )


def write_run(run: Run, specs: Specs) -> bytes | None:
    if len(run.groups) != 1 or run.functions:
        return None
    (group,) = run.groups
    if group.inputs or not _fits(group.ids, group.payloads) or len(group.attempts) != 1:
        return None
    spec = specs.bytes_of(group.spec)
    attempt = group.attempts[0]
    if spec is None or not 1 <= attempt <= MAX_ATTEMPT:
        return None
    words = len(spec) // 8
    payload = group.payloads[0]
    padded = _padded(payload)
    return b"".join(
        (
            _RUN.pack(
                _segment(words + 16 + len(padded) // 8),
                _RUN_HEAD,
                _RUN_GROUPS,
                _bytes_pointer(ID_BYTES, words + 4),
                _bytes_pointer(2, words + 5),
                _list_pointer(words + 5),
                _NOTHING,
            ),
            spec,
            _RUN_ROW.pack(group.ids[0], attempt, _bytes_pointer(len(payload), 0)),
            padded,
        )
    )


def write_done(done: Done, _specs: Specs) -> bytes | None:
    if not _fits(done.ids, done.payloads) or done.cpu_us or done.peak_bytes:
        return None
    if not len(done.attempts) == len(done.outcomes) == len(done.duration_us) == 1:
        return None
    attempt, outcome, duration = done.attempts[0], done.outcomes[0], done.duration_us[0]
    if not (1 <= attempt <= MAX_ATTEMPT and outcome in ANY_OUTCOME and 0 <= duration <= MAX_U32):
        return None
    payload = done.payloads[0]
    padded = _padded(payload)
    words = len(padded) // 8
    packed = _DONE.pack(
        _segment(words + 16),
        _DONE_HEAD,
        _DONE_COLUMNS,
        _bytes_pointer(4, words + 7),
        _NOTHING,
        done.ids[0],
        attempt,
        outcome,
        _bytes_pointer(len(payload), 0),
    )
    return b"".join((packed, padded, _U32.pack(duration)))


def write_finished(finished: Finished, _specs: Specs) -> bytes | None:
    if not _fits(finished.ids, finished.payloads) or finished.cpu_us or finished.peak_bytes:
        return None
    if not len(finished.outcomes) == len(finished.duration_us) == 1:
        return None
    outcome, duration = finished.outcomes[0], finished.duration_us[0]
    if not (outcome in FINAL_OUTCOMES and 0 <= duration <= MAX_U32 and 0 <= finished.number <= _MAX_NUMBER):
        return None
    payload = finished.payloads[0]
    padded = _padded(payload)
    words = len(padded) // 8
    packed = _FINISHED.pack(
        _segment(words + 15),
        _FINISHED_HEAD,
        finished.number,
        _FINISHED_COLUMNS,
        _bytes_pointer(4, words + 6),
        _NOTHING,
        finished.ids[0],
        outcome,
        _bytes_pointer(len(payload), 0),
    )
    return b"".join((packed, padded, _U32.pack(duration)))


WRITERS: dict[type[Message], Callable[..., bytes | None]] = {
    Submit: write_submit,
    Run: write_run,
    Done: write_done,
    Finished: write_finished,
}


# -- reading ---------------------------------------------------------------------------------------------------------


def read(body: bytes, specs: Specs) -> Message | None:
    """Return the message that a body holds, if it is about a single task and looks in all its parts as usual."""
    reader = _READERS.get(body[_HEAD])
    return reader(body, specs) if reader is not None else None


def _payload(body: bytes, pointer: int, at: int, behind: int) -> bytes | None:
    """Return the payload at this place, if the pointer is one to it and the body ends so many bytes behind it."""
    size = pointer >> 35
    if not size or pointer != _bytes_pointer(size, 0) or at + size + -size % 8 + behind != len(body):
        return None
    return body[at : at + size]


def _read_submit(body: bytes, specs: Specs) -> Submit | None:
    if len(body) < _SUBMIT.size + _SUBMIT_ROW.size:
        return None
    segment, _, seen, groups, ids, payloads, nothing = _SUBMIT.unpack_from(body)
    words = (ids >> 2 & 0x1FFF_FFFF) - 3
    at = _SUBMIT.size + 8 * words
    if (
        segment != _segment(len(body) // 8 - 1)
        or groups != _SUBMIT_GROUPS
        or nothing != _NOTHING
        or ids != _bytes_pointer(ID_BYTES, words + 3)
        or payloads != _list_pointer(words + 4)
        or at + _SUBMIT_ROW.size > len(body)
        or (spec := specs.spec_of(body[_SUBMIT.size : at])) is None
    ):
        return None
    identifier, pointer = _SUBMIT_ROW.unpack_from(body, at)
    payload = _payload(body, pointer, at + _SUBMIT_ROW.size, 0)
    return Submit([], [TaskGroup(spec, [identifier], [payload])], seen) if payload is not None else None


def _read_run(body: bytes, specs: Specs) -> Run | None:
    if len(body) < _RUN.size + _RUN_ROW.size:
        return None
    segment, _, groups, ids, attempts, payloads, nothing = _RUN.unpack_from(body)
    words = (ids >> 2 & 0x1FFF_FFFF) - 4
    at = _RUN.size + 8 * words
    if (
        segment != _segment(len(body) // 8 - 1)
        or groups != _RUN_GROUPS
        or nothing != _NOTHING
        or ids != _bytes_pointer(ID_BYTES, words + 4)
        or attempts != _bytes_pointer(2, words + 5)
        or payloads != _list_pointer(words + 5)
        or at + _RUN_ROW.size > len(body)
        or (spec := specs.spec_of(body[_RUN.size : at])) is None
    ):
        return None
    identifier, attempt, pointer = _RUN_ROW.unpack_from(body, at)
    payload = _payload(body, pointer, at + _RUN_ROW.size, 0)
    if payload is None or not 1 <= attempt <= MAX_ATTEMPT:
        return None
    return Run([], [RunGroup(spec, [identifier], [attempt], [payload])])


def _read_done(body: bytes, _specs: Specs) -> Done | None:
    if len(body) < _DONE.size:
        return None
    segment, _, columns, durations, nothing, identifier, attempt, outcome, pointer = _DONE.unpack_from(body)
    payload = _payload(body, pointer, _DONE.size, _U32.size)
    if (
        payload is None
        or segment != _segment(len(body) // 8 - 1)
        or columns != _DONE_COLUMNS
        or durations != _bytes_pointer(4, len(body) // 8 - 10)
        or nothing != _NOTHING
        or not 1 <= attempt <= MAX_ATTEMPT
        or outcome not in ANY_OUTCOME
    ):
        return None
    return Done([identifier], [attempt], [outcome], [payload], list(_U32.unpack_from(body, len(body) - _U32.size)))


def _read_finished(body: bytes, _specs: Specs) -> Finished | None:
    if len(body) < _FINISHED.size:
        return None
    segment, _, number, columns, durations, nothing, identifier, outcome, pointer = _FINISHED.unpack_from(body)
    payload = _payload(body, pointer, _FINISHED.size, _U32.size)
    if (
        payload is None
        or segment != _segment(len(body) // 8 - 1)
        or columns != _FINISHED_COLUMNS
        or durations != _bytes_pointer(4, len(body) // 8 - 10)
        or nothing != _NOTHING
        or outcome not in FINAL_OUTCOMES
    ):
        return None
    return Finished(number, [identifier], [outcome], [payload], list(_U32.unpack_from(body, len(body) - _U32.size)))


_READERS: dict[bytes, Callable[[bytes, Specs], Message | None]] = {
    _SUBMIT_HEAD: _read_submit,
    _RUN_HEAD: _read_run,
    _DONE_HEAD: _read_done,
    _FINISHED_HEAD: _read_finished,
}
