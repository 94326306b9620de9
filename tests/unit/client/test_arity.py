"""Calls rejected because of a function's signature, and calls left to the function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from scaler.client.task_calls import check_arguments


def plain(a: int, b: int = 0, *, c: int = 0) -> None: ...


def everything(*args: Any, **kwargs: Any) -> None: ...


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> None: ...


def says_otherwise(a: int, b: int) -> None: ...


says_otherwise.__signature__ = "any"  # type: ignore[attr-defined]


class Made:
    def __init__(self, size: int) -> None: ...

    def method(self, value: int) -> None: ...

    def __call__(self, left: int, right: int) -> None: ...


class Meta(type):
    def __call__(cls, *args: Any) -> object:
        return super().__call__()


class OfMeta(metaclass=Meta):
    pass


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (plain, (1,), {}),
        (plain, (1, 2), {"c": 3}),
        (plain, (), {"a": 1}),
        (everything, (1, 2, 3), {"x": 1}),
        (wrapped, (1, 2, 3), {}),
        (says_otherwise, (), {}),
        (functools.partial(plain, 1), (2,), {}),
        (Made, (1,), {}),
        (Made(1).method, (1,), {}),
        (Made(1), (1, 2), {}),
        (OfMeta, (1, 2), {}),
        (math.hypot, (1, 2, 3), {}),
        (int, ("7",), {}),
    ],
)
def test_accepts_arguments_that_a_function_may_accept(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    check_arguments(function, args, kwargs)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text"),
    [
        (plain, (), {}, r"plain\(\) does not take these arguments: missing a required argument: 'a'"),
        (plain, (1, 2, 3), {}, "too many positional arguments"),
        (plain, (1,), {"d": 1}, "unexpected keyword argument 'd'"),
        (plain, (1,), {"priority": 5}, r"'priority'; priority is a task option: client.options\(priority=...\)"),
        (plain, (1,), {"a": 1}, "multiple values for argument 'a'"),
        (lambda: None, (1,), {}, "too many"),
        (functools.partial(plain, 1, 2), (3,), {}, "too many"),
        (Made, (), {}, "missing a required argument: 'size'"),
        (Made(1).method, (), {}, "missing a required argument: 'value'"),
        (Made(1), (1,), {}, "missing a required argument: 'right'"),
        (abs, (1, 2), {}, "too many"),
    ],
)
def test_rejects_arguments_that_a_function_does_not_accept(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        check_arguments(function, args, kwargs)
