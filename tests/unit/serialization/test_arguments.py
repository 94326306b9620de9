"""Conversion of arguments to parts and back."""

from __future__ import annotations

import pickle
import struct
import threading
from typing import Any

import cloudpickle
import numpy as np
import pytest

from scaler.errors import SerializationError
from scaler.protocol.messages import INLINE_LIMIT_BYTES, PayloadTag
from scaler.serialization import Serializer, dump_function, dump_value, load_function, load_value, parts_of, to_payload
from scaler.serialization.arguments import ByReference, Collection, dump_arguments, load_arguments


class Elsewhere(ByReference):
    """A reference for tests."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _known_value(self, _collection: Collection, /) -> tuple[Any] | None:
        return ("known",) if self.name == "known" else None


class Tagged(Serializer):
    """Counts, and writes its kind in the first byte."""

    def __init__(self) -> None:
        self.made: list[object] = []

    def serialize(self, obj: Any) -> bytes:
        self.made.append(obj)
        return b"I" + struct.pack("<q", obj) if isinstance(obj, int) else b"G" + cloudpickle.dumps(obj)

    def deserialize(self, payload: bytes) -> Any:
        assert type(payload) is bytes
        return struct.unpack("<q", payload[1:])[0] if payload[:1] == b"I" else pickle.loads(payload[1:])


def there_and_back(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parts, found = dump_arguments(args, kwargs)
    return load_arguments(parts_of(to_payload(parts)), lambda index: found[index].name)  # type: ignore[attr-defined]


def test_arguments_round_trip() -> None:
    assert there_and_back() == ((), {})
    assert there_and_back(1, "two", key=[3]) == ((1, "two"), {"key": [3]})
    assert there_and_back([[1], {}]) == (([[1], {}],), {})
    assert there_and_back(([1], {"a": 2})) == ((([1], {"a": 2}),), {})


def test_arrays_travel_out_of_band_and_are_writable() -> None:
    array = np.arange(100.0)
    parts, _ = dump_arguments((array,), {})
    assert len(parts) == 2
    assert len(parts[0]) < 300
    (loaded,), _ = load_arguments(parts_of(to_payload(parts)), lambda index: index)
    assert (loaded == array).all()
    loaded[0] = 7.0
    assert loaded.ctypes.data % 16 == 0


def test_task_arguments_are_writable_at_any_size_and_from_any_source() -> None:
    parts, _ = dump_arguments((np.zeros(INLINE_LIMIT_BYTES),), {})
    received = [memoryview(bytes(part)) for part in parts]
    (loaded,), _ = load_arguments(received, lambda index: index)
    loaded += 1
    assert not load_value(received)[0].flags.writeable


def test_references_are_found_at_any_depth_and_filled_in() -> None:
    one, two = Elsewhere("one"), Elsewhere("two")
    parts, found = dump_arguments(([one, {"k": (two, one)}],), {"x": two})
    assert found == [one, two]
    args, kwargs = load_arguments(parts, lambda index: f"value {index}")
    assert args == (["value 0", {"k": ("value 1", "value 0")}],)
    assert kwargs == {"x": "value 1"}


def test_reference_with_a_known_value_is_sent_as_the_value() -> None:
    parts, found = dump_arguments(([Elsewhere("known")],), {})
    assert not found
    assert load_arguments(parts, lambda index: index) == ((["known"],), {})


def test_reference_cannot_be_pickled_outside_arguments() -> None:
    with pytest.raises(TypeError, match="Elsewhere cannot be pickled directly"):
        pickle.dumps(Elsewhere("one"))
    with pytest.raises(SerializationError, match=r"the result at \[0\] \([\w.]*Elsewhere"):
        dump_value([Elsewhere("one")])


def test_unserializable_value_is_named_with_place_and_type() -> None:
    with pytest.raises(SerializationError, match=r"argument 2 of f \(_thread.lock\) cannot be serialized: TypeError"):
        dump_arguments((1, threading.Lock()), {}, function_name="f")
    with pytest.raises(SerializationError, match=r"argument 'lock' of f \(_thread.lock"):
        dump_arguments((1,), {"lock": threading.Lock()}, function_name="f")


class Box:
    def __init__(self, content: object) -> None:
        self.content = content


def test_names_the_place_inside_an_argument() -> None:
    deep = [1, {"box": Box((0, threading.Lock()))}]
    with pytest.raises(SerializationError, match=r"argument 1 of f at \[1\]\['box'\]\.content\[1\] \(_thread\.lock"):
        dump_arguments((deep,), {}, function_name="f")
    endless: list[object] = [threading.Lock()]
    endless.insert(0, endless)
    with pytest.raises(SerializationError, match=r"argument 1 of f at \[1\] \(_thread\.lock"):
        dump_arguments((endless,), {}, function_name="f")


def test_unloadable_value_error_has_the_reason() -> None:
    with pytest.raises(SerializationError, match="the arguments cannot be loaded: ModuleNotFoundError"):
        load_arguments([b"\x80\x05cno_such_module\nthing\n."], lambda index: index)


def test_serializer_handles_function_arguments_and_result() -> None:
    serializer = Tagged()
    function = dump_function(pow, serializer)
    parts, _ = dump_arguments((2, 3), {"mod": 5}, serializer)
    result = dump_value(3, serializer)
    assert serializer.made == [pow, 2, 3, 5, 3]
    payload = to_payload(parts, PayloadTag.ARGUMENTS)
    assert payload[0] == PayloadTag.ARGUMENTS
    args, kwargs = load_arguments(parts_of(payload), lambda index: index, serializer)
    assert load_function(function, serializer)(*args, **kwargs) == load_value(parts_of(to_payload(result)), serializer)


def test_references_work_with_a_custom_serializer_at_any_depth() -> None:
    serializer = Tagged()
    one, two = Elsewhere("one"), Elsewhere("two")
    parts, found = dump_arguments((one, [two]), {"again": one, "known": Elsewhere("known")}, serializer)
    assert found == [one, two]
    args, kwargs = load_arguments(parts, lambda index: 10 * index, serializer)
    assert args == (0, [10])
    assert kwargs == {"again": 0, "known": "known"}
