"""Counts, lists, and names in sentences."""

from __future__ import annotations

import pytest

from scaler.grammar import called, counted, listed


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (2_060, "2,060 tasks"), (-1, "-1 tasks")]
)
def test_count_includes_its_noun(count: int, text: str) -> None:
    assert counted(count, "task") == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("a", "a"),
        ("ab", "a and b"),
        ("abc", "a, b and c"),
        ("abcd", "a, b, c and 1 more"),
        ("x" * 2_003, "x, x, x and 2,000 more"),
    ],
)
def test_list_of_names_ends_with_and(names: str, text: str) -> None:
    assert listed(names, 3) == text


def test_function_names_get_parentheses_and_anonymous_ones_words() -> None:
    assert (called("f"), called("<lambda>"), called("")) == ("f()", "<lambda>()", "a function without a name")
