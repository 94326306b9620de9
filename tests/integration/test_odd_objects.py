"""Mocks, proxies, and objects that raise on inspection: they are sent, or an error names them."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaler import Client
from scaler.errors import ScalerError, SerializationError, UsageError


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(processes=False) as connected:
        yield connected


class Proxy:
    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)

    def __call__(self, *args: Any) -> Any:
        return self.inner(*args)  # type: ignore[operator]


class AnswersAnything:
    def __getattr__(self, name: str) -> Any:
        if name in {"__reduce_ex__", "__getstate__", "__setstate__", "__reduce__"}:
            raise AttributeError(name)
        return AnswersAnything()

    def __call__(self, *_: Any) -> int:
        return 1


class RaisesAlways:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __call__(self, *_: Any) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, _: object) -> bool:
        raise RuntimeError("not comparable")

    def __hash__(self) -> int:
        raise RuntimeError("not hashable")


class RefusesItsClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class AsksItsOwnAttributes:
    def __init__(self) -> None:
        self.names = {"size": 1}

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


class WrapsItself:
    def __init__(self) -> None:
        self.func = self.__wrapped__ = self

    def __call__(self, *_: Any) -> int:
        return 1


CALLABLES: list[Callable[[], Any]] = [
    lambda: unittest.mock.Mock(return_value=1),
    lambda: unittest.mock.MagicMock(return_value=1),
    lambda: Proxy(abs),
    AnswersAnything,
    RaisesAlways,
    WrapsItself,
]


def kind_of(value: object) -> str:
    return type(value).__name__


def in_lists(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def in_itself() -> list[Any]:
    nested: list[Any] = []
    nested.append(nested)
    return nested


@pytest.mark.parametrize("make", CALLABLES)
def test_unusual_callable_runs(client: Client, make: Callable[[], Any]) -> None:
    # A called mock cannot be pickled.
    assert client.submit(make(), 1).result() == 1
    assert client.map(make(), [1, -1]) == [1, 1]
    assert client.get({"a": (make(), -1)}, ["a"]) == {"a": 1}


@pytest.mark.parametrize("make", [*CALLABLES, in_itself])
def test_unusual_argument_arrives(client: Client, make: Callable[[], Any]) -> None:
    value = make()
    assert client.submit(kind_of, value).result() == kind_of(value)
    assert client.map(kind_of, [value]) == [kind_of(value)]
    assert client.gather({"a": (make(),)} if make is not in_itself else value[:0]) is not None


DEEP = 100_000


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.submit(kind_of, in_lists(DEEP)), "argument 1 of kind_of at"),
        (lambda client: client.submit(kind_of, RefusesItsClass()), "argument 1 of kind_of .*RefusesItsClass"),
        (lambda client: client.map(kind_of, [in_lists(DEEP)]), "argument 1 of kind_of at"),
        (lambda client: client.send_object(in_lists(DEEP)), "the object at"),
        (lambda client: client.get({"a": (kind_of, in_lists(DEEP))}, ["a"]), "key 'a' cannot be computed: its lists"),
        (lambda client: client.get({"a": (kind_of, in_itself())}, ["a"]), "key 'a' cannot be computed: its lists"),
        (lambda client: client.gather(in_lists(DEEP)), "nested too deeply"),
        (lambda client: client.gather(in_itself()), "contains itself"),
        (lambda client: client.as_completed(5), "futures is 5, but must be iterable"),
        (lambda client: client.as_completed([unittest.mock.Mock()]), "<Mock .* is not a future"),
        (lambda client: client.map(abs, 5), "iterable 1 of map is 5"),
        (lambda client: client.imap(max, [1], unittest.mock.Mock()), "iterable 2 of imap is <Mock"),
        (lambda client: client.starmap(max, 5), "the iterable of starmap is 5"),
        (lambda client: client.get({"a": 1}, 5), "keys is 5, but must be iterable"),
        (lambda client: client.explain(unittest.mock.Mock()), "<Mock .* is not a future"),
        (lambda client: client.logs(unittest.mock.Mock()), "<Mock .* is not a future"),
        (lambda client: client.replay(unittest.mock.Mock()), "<Mock .* is not a future"),
        (lambda client: client.upload(unittest.mock.Mock()), "not <Mock"),
        (lambda client: client.options(priority=RaisesAlways()).submit(abs, 1), "priority is <RaisesAlways instance"),
        (lambda client: client.submit_verbose(abs, 5), r"args is 5, but must be a tuple .* such as \(5,\)"),
        (lambda client: client.submit_verbose(dict, kwargs={1: 2}), "kwargs is {1: 2}"),
        (lambda client: client.submit(RefusesItsClass()), "must be callable, and <.*RefusesItsClass object"),
    ],
)
def test_invalid_object_operation_raises_and_names_it(client: Client, call: Callable[[Client], Any], text: str) -> None:
    with pytest.raises((UsageError, SerializationError), match=text) as raised:
        call(client)
    assert isinstance(raised.value, ScalerError)
    assert len(str(raised.value)) < 1000


def test_unloadable_object_error_names_the_line_that_raised(client: Client) -> None:
    line = r"RecursionError: .* in AsksItsOwnAttributes.__getattr__ \(test_odd_objects.py:\d+\), which must raise Attr"
    for call in (client.submit(kind_of, AsksItsOwnAttributes()), client.submit(AsksItsOwnAttributes)):
        with pytest.raises(SerializationError, match=line):
            call.result()
    with pytest.raises(SerializationError, match=line):
        client.map(kind_of, [AsksItsOwnAttributes()])
