"""Functions by name, and the documents that other languages read and write."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.errors import ScalerError, SerializationError
from scaler.extensions.languages.by_name import JsonSerializer
from scaler.protocol.messages import PayloadTag
from scaler.serialization import load_function, load_retry_on, load_value, parts_of, to_payload
from scaler.serialization.arguments import load_arguments

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
DOCUMENTS = st.recursive(
    SCALARS | st.text(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def no_input(index: int) -> Any:
    raise IndexError(index)


@settings(max_examples=10)
@given(DOCUMENTS)
def test_value_round_trips(value: object) -> None:
    payload = to_payload([JsonSerializer().serialize(value)])
    assert payload[0] == PayloadTag.JSON
    assert load_value(parts_of(payload)) == value


@settings(max_examples=10)
@given(st.lists(DOCUMENTS, max_size=3), st.dictionaries(st.text(), DOCUMENTS, max_size=3))
def test_arguments_arrive_unchanged(args: list[Any], kwargs: dict[str, Any]) -> None:
    payload = JsonSerializer().serialize({"args": args, "kwargs": kwargs})
    assert load_arguments(parts_of(payload), no_input) == (tuple(args), kwargs)


@given(st.binary(max_size=60))
def test_any_bytes_are_arguments_or_refused(data: bytes) -> None:
    for tag in (PayloadTag.NAMED, PayloadTag.JSON):
        try:
            args, kwargs = load_arguments([bytes([tag]) + data], no_input)
        except ScalerError:
            continue
        assert type(args) is tuple
        assert type(kwargs) is dict


def test_function_by_name_is_the_function_itself() -> None:
    assert load_function(parts_of(b"\x05\x06os.path:join")) is sys.modules["os.path"].join
    assert load_function([b"\x05\x06builtins:dict.fromkeys"]) == dict.fromkeys


@pytest.mark.parametrize(
    "names", [b'"builtins:OSError"', b"[1]", b'["builtins:len"]', b'["no_such_module:Error"]', b"{"]
)
def test_retry_on_must_be_a_list_of_exception_types(names: bytes) -> None:
    with pytest.raises(SerializationError):
        load_retry_on(b"\x06" + names)


def test_retry_on_names_exception_types() -> None:
    is_to_retry = load_retry_on(b'\x06["builtins:LookupError", "json:JSONDecodeError"]')
    assert is_to_retry(KeyError())
    assert not is_to_retry(OSError())
