"""A function is serialized once, and again when what it carries has changed."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cloudpickle

from scaler.client.functions import FunctionTable, carried_by
from scaler.client.tasks import Definition


class Table:
    """A table that counts what is serialized."""

    def __init__(self, by_value: bool = True) -> None:
        self.defined: list[object] = []
        self.releases: deque[bytes] = deque()
        self._by_value = by_value
        self._table = FunctionTable(self._define)

    def _define(self, function: Callable[..., Any]) -> tuple[Definition, bool]:
        self.defined.append(function)
        return Definition(len(self.defined).to_bytes(16, "big"), b"", None, self.releases), self._by_value

    def serialized(self, function: Callable[..., Any]) -> bool:
        """Ask for a function; tell whether it was serialized for that."""
        before = len(self.defined)
        self._table.get(function)
        return len(self.defined) > before


def module(text: str) -> dict[str, Any]:
    made = ModuleType("made")
    exec(text, made.__dict__)
    return made.__dict__


def test_a_plain_function_is_serialized_once() -> None:
    table = Table(by_value=False)
    for function in (math.sqrt, test_a_plain_function_is_serialized_once, int, len):
        assert table.serialized(function)
        assert not table.serialized(function)


def test_a_function_is_serialized_again_when_its_module_is_registered_to_travel_by_value() -> None:
    table = Table(by_value=False)
    assert table.serialized(math.sqrt)
    for change in (cloudpickle.register_pickle_by_value, cloudpickle.unregister_pickle_by_value):
        change(math)
        assert table.serialized(math.sqrt)
        assert not table.serialized(math.sqrt)


def test_a_function_is_serialized_again_when_a_global_of_it_or_of_its_callees_is_another() -> None:
    names = module("limit = 1\ndef inner(): return limit\ndef outer(): return (lambda: inner())()\n")
    table = Table()
    assert table.serialized(names["outer"])
    assert not table.serialized(names["outer"])
    names["limit"] = 2
    assert table.serialized(names["outer"])
    assert not table.serialized(names["outer"])
    names["inner"].__defaults__ = (3,)
    assert table.serialized(names["outer"])


def test_a_function_that_uses_something_changeable_is_serialized_every_time() -> None:
    names = module("seen = []\ndef grow(): return len(seen)\n")
    table = Table()
    assert table.serialized(names["grow"])
    assert table.serialized(names["grow"])


def test_a_closure_is_serialized_again_when_its_cell_has_changed() -> None:
    count = 1

    def closure() -> int:
        return count

    table = Table()
    assert table.serialized(closure)
    assert not table.serialized(closure)
    count = 2
    assert table.serialized(closure)


def test_recursive_functions_and_those_of_modules_are_remembered() -> None:
    names = module("import math\ndef f(n): return math.sqrt(n) + f(n - 1)\n")
    table = Table()
    assert table.serialized(names["f"])
    assert not table.serialized(names["f"])


def test_bound_methods_partials_and_callable_objects_are_serialized_every_time() -> None:
    table = Table(by_value=False)
    numbers: list[int] = []
    for function in (numbers.append, functools.partial(pow, 2), Table().serialized):
        assert carried_by(function, by_value=False) is None
        assert table.serialized(function)
        assert table.serialized(function)


def test_a_definition_is_released_when_nothing_uses_it() -> None:
    table = Table()
    names = module("limit = 1\ndef f(): return limit\n")
    table.serialized(names["f"])
    names["limit"] = 2
    table.serialized(names["f"])
    assert list(table.releases) == [(1).to_bytes(16, "big")]
