"""Functions pickled by value, which plain pickle finds only by name or not at all."""

from __future__ import annotations

import functools

from scaler.serialization import dump, load


def test_cached_function_arrives_with_an_empty_cache() -> None:
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


def test_function_has_one_cache_shared_by_all_users() -> None:
    @functools.cache
    def table() -> list[int]:
        return [1]

    def first() -> list[int]:
        return table()

    def second() -> list[int]:
        return table()

    one, other = load(dump([first, second]))
    assert one() is other()
