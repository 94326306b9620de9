"""What is written and read without the library of Cap'n Proto is what the library would have written and read."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import capnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler.protocol import batch_shapes, lone
from scaler.protocol import messages as m
from scaler.protocol.codec import decode, encode

Body: Any = capnp.load(str(files("scaler.protocol").joinpath("scaler.capnp"))).Body

ID = st.binary(min_size=16, max_size=16)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
ATTEMPT = st.integers(1, 65_534)
PAYLOAD = st.binary(min_size=1, max_size=40) | st.integers(41, 5_000).map(lambda size: b"\x80" * size)
NAME = st.text(max_size=12)
SPEC = st.builds(
    m.Spec,
    function=ID,
    serializer=st.just(b"") | ID,
    needs=st.sampled_from([(), (("gpu", 0.0),), (("a", 1.5), ("b", 2.0))]),
    priority=st.integers(-(2**63), 2**63 - 1),
    retries=U32,
    retry_on=st.binary(max_size=20),
    timeout_seconds=st.floats(0, 1e9),
    profiling=st.booleans(),
    stream_output=st.booleans(),
    deliver=st.booleans(),
    name=NAME,
)
FINAL = st.sampled_from(sorted(set(m.Outcome) - {m.Outcome.EXCEPTION_TO_RETRY, m.Outcome.NOT_STARTED}))


_ID = bytes(range(16))
_SPEC = m.Spec(_ID, name="f")
EXAMPLES: dict[type[Any], m.Message] = {
    m.Submit: m.Submit([], [m.TaskGroup(_SPEC, [_ID], [b"\x80arguments"])], 5),
    m.Run: m.Run([], [m.RunGroup(_SPEC, [_ID], [1], [b"\x80arguments"])]),
    m.Done: m.Done([_ID], [1], [0], [b"\x80result"], [100]),
    m.Finished: m.Finished(7, [_ID], [0], [b"\x80result"], [100]),
}


def one(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(of, min_size=1, max_size=1)


SUBMIT = st.builds(m.Submit, st.just([]), one(st.builds(m.TaskGroup, SPEC, one(ID), one(PAYLOAD))), U64)
RUN = st.builds(m.Run, st.just([]), one(st.builds(m.RunGroup, SPEC, one(ID), one(ATTEMPT), one(PAYLOAD))))
DONE = st.builds(m.Done, one(ID), one(ATTEMPT), one(st.sampled_from(m.Outcome)), one(PAYLOAD), one(U32))
FINISHED = st.builds(m.Finished, U64, one(ID), one(FINAL), one(PAYLOAD), one(U32))
LONE = SUBMIT | RUN | DONE | FINISHED
WRITERS: dict[type[Any], tuple[str, Callable[[Any, Any], None]]] = {
    m.Submit: ("submit", batch_shapes.write_submit),
    m.Run: ("run", batch_shapes.write_run),
    m.Done: ("done", batch_shapes.write_done),
    m.Finished: ("finished", batch_shapes.write_finished),
}


def by_the_library(message: Any) -> bytes:
    builder = Body.new_message()
    wire, write = WRITERS[type(message)]
    write(builder.init(wire), message)
    body: bytes = builder.to_bytes()
    return body


def with_an_idle_word(body: bytes) -> bytes:
    """The same message with a word behind it that nothing points to: only the library reads that."""
    words = int.from_bytes(body[4:8], "little") + 1
    return body[:4] + words.to_bytes(4, "little") + body[8:] + bytes(8)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LONE)
def test_a_lone_task_is_written_as_the_library_writes_it_and_read_alike(message: m.Message) -> None:
    body = encode(message)
    assert body == by_the_library(message)
    assert decode(body) == message
    assert decode(body) == decode(with_an_idle_word(body))


@pytest.mark.parametrize("kind", WRITERS, ids=lambda kind: kind.__name__)
def test_whatever_bit_was_changed_it_means_what_the_library_finds_or_is_left_to_it(kind: type[Any]) -> None:
    specs = lone.Specs(by_the_library)
    specs.bytes_of(_SPEC)
    body = by_the_library(EXAMPLES[kind])
    read = 0
    for place in range(len(body)):
        for bit in range(8):
            changed = bytearray(body)
            changed[place] ^= 1 << bit
            message = lone.read(bytes(changed), specs)
            if message is not None:
                assert message == decode(with_an_idle_word(bytes(changed)))
                read += 1
    assert read > 8 * 16  # another id is another id


@settings(max_examples=200, deadline=None)
@given(LONE, st.data())
def test_what_was_cut_or_has_something_behind_it_is_left_to_the_library(
    message: m.Message, data: st.DataObject
) -> None:
    specs = lone.Specs(by_the_library)
    body = encode(message)
    read_once(message, specs)
    assert lone.read(body, specs) == message
    assert lone.read(body[: data.draw(st.integers(0, len(body) - 1))], specs) is None
    assert lone.read(body + bytes(data.draw(st.integers(1, 16))), specs) is None


def read_once(message: m.Message, specs: lone.Specs) -> None:
    if isinstance(message, m.Submit | m.Run):
        specs.bytes_of(message.groups[0].spec)


@pytest.mark.parametrize(
    "message",
    [
        m.Submit([(_ID, b"f")], [m.TaskGroup(_SPEC, [_ID], [b"a"])]),
        m.Submit([], [m.TaskGroup(_SPEC, [_ID], [b"a"], [(_ID,)])]),
        m.Submit([], [m.TaskGroup(_SPEC, [_ID, _ID], [b"a", b"b"])]),
        m.Submit([], [m.TaskGroup(_SPEC, [_ID], [b""])]),
        m.Submit([], [m.TaskGroup(_SPEC, [_ID], [b"a"])] * 2),
        m.Submit([], [m.TaskGroup(m.Spec(_ID, parent=_ID), [_ID], [b"a"])]),
        m.Submit([], [m.TaskGroup(m.Spec(_ID, retry_on=bytes(20_000)), [_ID], [b"a"])]),
        m.Submit([], [m.TaskGroup(_SPEC, [_ID], [bytes(lone.MAX_PAYLOAD_BYTES + 1)])]),
        m.Run([], [m.RunGroup(_SPEC, [_ID], [1], [b"a"], [(b"x",)])]),
        m.Run([(_ID, b"f")], [m.RunGroup(_SPEC, [_ID], [1], [b"a"])]),
        m.Done([_ID], [1], [0], [b"a"], [1], [2], [3]),
        m.Done([_ID, _ID], [1, 2], [0, 0], [b"a", b"b"], [1, 2]),
        m.Finished(1, [_ID], [0], [b"a"], [1], [2], [3]),
        m.Finished(1, [], [], [], []),
    ],
)
def test_what_is_not_so_simple_is_left_to_the_library(message: m.Message) -> None:
    specs = lone.Specs(by_the_library)
    assert lone.WRITERS[type(message)](message, specs) is None
    assert lone.read(encode(message), specs) is None
    assert decode(encode(message)) == message


def test_no_more_specs_are_remembered_than_the_limit_says() -> None:
    specs = lone.Specs(by_the_library)
    for number in range(lone.MAX_SPECS + 1):
        last = m.Spec(number.to_bytes(16, "big"))
        data = specs.bytes_of(last)
        if number == 0:
            first = data
    assert first is not None
    assert data is not None
    assert specs.spec_of(data) == last
    assert specs.spec_of(first) is None
