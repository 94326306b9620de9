"""Functions that travel by value: what plain pickle finds by name only, or not at all."""

from __future__ import annotations

import base64
import functools
import json
from typing import Any

from scaler.serialization import dump, load


def test_a_cached_function_travels_with_an_empty_cache_of_its_own() -> None:
    calls: list[int] = []

    @functools.lru_cache(maxsize=3, typed=True)
    def square(number: int) -> int:
        calls.append(number)
        return number * number

    assert square(2) == 4
    there = load(dump(square))
    assert there.cache_parameters() == {"maxsize": 3, "typed": True}
    assert there.cache_info().currsize == 0
    assert [there(3), there(3)] == [9, 9]
    assert there.cache_info().hits == 1
    assert calls == [2]


def test_a_cached_function_that_calls_itself_travels() -> None:
    @functools.cache
    def fibonacci(number: int) -> int:
        return number if number < 2 else int(fibonacci(number - 1) + fibonacci(number - 2))

    assert load(dump(fibonacci))(80) == 23_416_728_348_467_685


def test_one_function_is_one_cache_for_all_that_use_it() -> None:
    @functools.cache
    def table() -> list[int]:
        return [1]

    def first() -> list[int]:
        return table()

    def second() -> list[int]:
        return table()

    one, other = load(dump([first, second]))
    assert one() is other()


def test_cached_functions_of_modules_travel_by_name() -> None:
    assert load(dump(json.detect_encoding)) is json.detect_encoding
    together: Any = load(dump([base64.b64encode, functools.partial(cached_here, 1), lambda: cached_here(2)]))
    assert together[1].func is cached_here


@functools.cache
def cached_here(number: int) -> int:
    return number
