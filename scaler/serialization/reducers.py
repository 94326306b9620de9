"""How objects of the standard library travel that cloudpickle cannot pickle: generic functions, cached properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, singledispatch, update_wrapper
from types import FunctionType
from typing import Any

from scaler.serialization.snapshot import is_found_by_name

_DISPATCH_CODE = singledispatch(abs).__code__  # type: ignore[attr-defined]
"""Code of every function that `singledispatch` returns."""


def reduce_cached_property(made: cached_property[Any]) -> tuple[Any, ...]:
    """Reduce without the lock that Python 3.11 has in it."""
    return cached_property, (made.func,), {"attrname": made.attrname, "__doc__": made.__doc__}


def is_generic(value: object) -> bool:
    """Tell whether a value is a function of `singledispatch` that no other process finds by its name."""
    return type(value) is FunctionType and value.__code__ is _DISPATCH_CODE and not is_found_by_name(value)


def reduce_generic(function: Any) -> tuple[Any, ...]:
    """Reduce to the registered implementations, which may call the function itself, and not to what it has cached."""
    attributes = {name: value for name, value in vars(function).items() if name not in _OWN}
    return _generic, (function.__name__,), (dict(function.registry), attributes), None, None, _register


def _generic(name: str) -> Callable[..., Any]:
    def function(*_: Any) -> None:
        """Stands for the implementation of `object`, which is registered next."""

    function.__name__ = name
    return singledispatch(function)


_OWN = frozenset(vars(_generic("")))


def _register(function: Any, state: tuple[dict[type, Callable[..., Any]], dict[str, Any]]) -> None:
    registry, attributes = state
    for kind, implementation in registry.items():
        function.register(kind, implementation)
    update_wrapper(function, registry[object])
    vars(function).update(attributes)
