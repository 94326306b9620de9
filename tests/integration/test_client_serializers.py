"""User-defined serializers and streamed output, from the client's view."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import cloudpickle
import numpy as np
import pytest

from scaler import Client, SchedulerClusterCombo, Serializer
from scaler.errors import SerializationError, UsageError

SECONDS = 20


@pytest.fixture(scope="module")
def client(cluster: SchedulerClusterCombo) -> Iterator[Client]:
    with Client(cluster.get_address(), timeout_seconds=SECONDS) as connected:
        yield connected


def add(x: Any, y: Any = 0) -> Any:
    return x + y


# -- serializers


class Marked(Serializer):
    """Has state, counts, and rejects on request of a test."""

    def __init__(self, mark: bytes) -> None:
        self.mark = mark
        self.made: list[str] = []
        self.loaded = 0

    def serialize(self, obj: Any) -> bytes:
        if obj == "not bytes":
            return obj  # type: ignore[no-any-return]
        if obj == "refused":
            raise RuntimeError("not on my watch")
        self.made.append(getattr(obj, "__name__", repr(obj)))
        return self.mark + cloudpickle.dumps(obj)  # type: ignore[no-any-return]

    def deserialize(self, payload: bytes) -> Any:
        assert payload[:1] == self.mark
        self.loaded += 1
        value = pickle.loads(payload[1:])
        if value == "cursed":
            raise KeyError("unreadable")
        return value


class Plain:
    """Without a base class or constructor."""

    @staticmethod
    def serialize(obj: Any) -> bytes:
        return b"s" + bytes(cloudpickle.dumps(obj))

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return pickle.loads(payload[1:])


class ByClass(Plain):
    @classmethod
    def serialize(cls, obj: Any) -> bytes:
        return b"c" + bytes(cloudpickle.dumps(obj))


def inside(client: Client) -> Any:
    return client.submit(add, 1, y=2).result(), client.map(add, [1, 2]), client.get({"a": 1, "b": (add, "a")}, ["b"])


@pytest.mark.parametrize("serializer", [Plain, Plain(), ByClass, Marked(b"m")])
def test_serializer_may_be_of_any_kind_and_works_in_nested_clients(
    cluster: SchedulerClusterCombo, serializer: Any
) -> None:
    with Client(cluster.get_address(), serializer=serializer) as client:
        assert client.submit(inside, client).result(SECONDS) == (3, [1, 2], {"b": 1})


def give(x: Any) -> Any:
    return {"r": "refused", "n": "not bytes", "c": "cursed"}.get(x, x)


def test_serializer_failure_fails_only_that_call(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address(), serializer=Marked(b"m")) as client:
        with pytest.raises(SerializationError, match=r"argument 1 of add .*RuntimeError: not on my watch"):
            client.submit(add, "refused")
        with pytest.raises(SerializationError, match="serialize must return bytes, not str"):
            client.submit(add, "not bytes")
        texts = {
            "r": "the result .*not on my watch",
            "n": "must return bytes, not str",
            "c": "the result cannot be loaded: KeyError",
            "cursed": "argument 1 cannot be loaded: KeyError",
        }
        futures = {name: client.submit(give, name) for name in texts}
        for name, text in texts.items():
            with pytest.raises(SerializationError, match=text):
                futures[name].result(SECONDS)
        assert client.submit(give, 5).result(SECONDS) == 5


def test_rejects_an_invalid_serializer(cluster: SchedulerClusterCombo) -> None:
    with pytest.raises(UsageError, match="has no method serialize"):
        Client(cluster.get_address(), serializer=object())  # type: ignore[arg-type]


class Watched:
    """Reports how much of an array its own pickle would include."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __reduce_ex__(self, protocol: Any) -> Any:
        beside: list[pickle.PickleBuffer] = []
        inside = pickle.dumps(self.array, protocol, buffer_callback=beside.append)
        return _watched, (len(inside), self.array)


def _watched(pickle_bytes: int, array: Any) -> tuple[int, Any]:
    return pickle_bytes, array


def look_at(watched: tuple[int, Any]) -> tuple[int, bool, bool]:
    pickle_bytes, array = watched
    return pickle_bytes, bool(array.flags.writeable), bool((array == np.arange(float(len(array)))).all())


def test_buffers_travel_out_of_band_and_arrive_writable(client: Client) -> None:
    for size in (1_000, 100_000):
        array = np.arange(float(size))
        pickle_bytes, is_writable, is_equal = client.submit(look_at, Watched(array)).result(SECONDS)
        assert pickle_bytes < 1_000, "the array is not in the pickle"
        assert is_writable
        assert is_equal
    result = client.submit(np.zeros, 1_000_000).result(SECONDS)
    assert result.flags.writeable
    assert not result.flags.owndata, "the array is in the receive buffer"


# -- output


def talk() -> None:
    sys.stdout.write("first half, ")
    sys.stdout.flush()
    print("second half")
    os.write(1, b"raw \xff\xfe\x00 bytes\n")
    subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
    thread = threading.Thread(target=print, args=("a thread",))
    thread.start()
    thread.join()
    print("to stderr", file=sys.stderr)
    print("\u20ac" * 40_000)
    print("no newline at the end", end="")


def shown(client: Client, function: Any, *args: Any) -> tuple[str, str]:
    """Return the output that has appeared when the result arrives."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        client.submit(function, *args).result(SECONDS)
        return out.getvalue(), err.getvalue()


def test_task_output_appears_in_order_before_the_result(cluster: SchedulerClusterCombo) -> None:
    with Client(cluster.get_address(), stream_output=True) as client:
        out, err = shown(client, talk)
    lines = out.split("\n")
    assert lines[:4] == ["first half, second half", "raw \ufffd\ufffd\x00 bytes", "a child", "a thread"]
    assert lines[4:] == ["\u20ac" * 40_000, "no newline at the end"]
    assert err == "to stderr\n"
