"""A function is serialized once, and again when its captured state has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import cloudpickle

from scaler.client.futures import FutureTable
from scaler.client.options import Options
from scaler.client.task_calls import TemplateTable
from scaler.client.tasks import ConnectionReady, ObjectUpload, TaskTemplate, UploadEnded
from scaler.errors import LimitError
from scaler.ids import IdFactory
from scaler.protocol.messages import Message, Release, stored_reference
from scaler.serialization import Parts, size_of


class Table:
    """The templates of an unconnected client, and its uploads."""

    def __init__(self) -> None:
        self.uploads: list[ObjectUpload] = []
        self.futures = FutureTable(
            IdFactory(b"client--"),
            wake=lambda: None,
            upload=self._upload,
            blocked=nullcontext,
            why_late=lambda _future, _timeout: "",
            explain=lambda _future: "",
            timeout_seconds=1.0,
        )
        self.templates = TemplateTable(self.futures, None)
        self._last: dict[int, TaskTemplate] = {}

    def _upload(self, parts: Parts) -> ObjectUpload:
        identifier = self.futures.ids.object()
        self.uploads.append(
            ObjectUpload(identifier, self.futures.releases, stored_reference(identifier, size_of(parts)))
        )
        return self.uploads[-1]

    def template(self, function: Callable[..., Any]) -> TaskTemplate:
        return self.templates.template(function, Options(), b"")

    def serialized(self, function: Callable[..., Any]) -> bool:
        """Request a function's template; return whether that serialized the function."""
        before, after = self._last.get(id(function)), self.template(function)
        self._last[id(function)] = after
        return after is not before

    def clear(self) -> None:
        self.templates.clear()
        self._last.clear()

    def messages(self) -> list[Message]:
        return self.futures.step(ConnectionReady(1 << 40))


def module(text: str) -> dict[str, Any]:
    made = ModuleType("made")
    exec(text, made.__dict__)
    return made.__dict__


def test_plain_function_is_serialized_once() -> None:
    table = Table()
    for function in (math.sqrt, test_plain_function_is_serialized_once, int, len):
        assert table.serialized(function)
        assert not table.serialized(function)


def test_function_is_reserialized_when_its_module_is_registered_by_value() -> None:
    table = Table()
    assert table.serialized(math.sqrt)
    for change in (cloudpickle.register_pickle_by_value, cloudpickle.unregister_pickle_by_value):
        change(math)
        assert table.serialized(math.sqrt)
        assert not table.serialized(math.sqrt)


def test_function_is_reserialized_when_a_global_it_uses_changes() -> None:
    names = module("limit = 1\ndef inner(): return limit\ndef outer(): return (lambda: inner())()\n")
    table = Table()
    assert table.serialized(names["outer"])
    assert not table.serialized(names["outer"])
    names["limit"] = 2
    assert table.serialized(names["outer"])
    assert not table.serialized(names["outer"])
    names["inner"].__defaults__ = (3,)
    assert table.serialized(names["outer"])


def test_unused_function_is_released() -> None:
    table = Table()
    function = table.template(abs).spec.function
    table.template(abs)
    assert table.messages() == []
    table.clear()
    assert table.messages() == [Release([function])]


def test_function_refused_for_lack_of_room_is_resent_with_the_next_task() -> None:
    table = Table()
    large: Any = bytes(2_000_000)

    def function() -> int:
        return len(large)

    first = table.template(function)
    assert table.template(function) is first
    table.futures.step(UploadEnded(table.uploads[0], LimitError("full")))
    again = table.template(function)
    assert again.uploads == (table.uploads[1],)
    assert table.template(function) is again
