"""Pickles functions and classes by value, with cloudpickle.

From version 3.1.3 on, cloudpickle gives all code the file name `<dynamic-code>`, so tracebacks of tasks would show
neither file nor line of the user's program. Here code keeps its file name. And functions of `functools.cache`, which
pickle knows by name only, travel by value where other functions do, each with an empty cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from io import BytesIO
from pickle import PickleBuffer
from types import CodeType
from typing import Any

import cloudpickle

DYNAMIC = "<dynamic-code>"

_reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]


def dumps(value: object, keep: Callable[[PickleBuffer], object] | None) -> bytes:
    """Return the pickle of a value. keep: takes its out-of-band buffers; None: the pickle contains them."""
    with BytesIO() as file:
        Pickler(file, 5, buffer_callback=keep).dump(value)
        return file.getvalue()


def _with_file_name(code: CodeType) -> tuple[Any, ...]:
    maker, arguments = _reduce_code(code)
    # A copy: whether a text is interned decides on the bytes of the pickle, which are to be the same each time.
    file_name = "".join(code.co_filename)
    return maker, tuple(file_name if type(each) is str and each == DYNAMIC else each for each in arguments)


def _reduce_cached(cached: _lru_cache_wrapper[Any]) -> str | tuple[Any, ...]:
    module, name = getattr(cached, "__module__", None), getattr(cached, "__qualname__", "")
    found: object = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is cached and module != "__main__" and module not in cloudpickle.list_registry_pickle_by_value():
        return str(name)
    parameters = cached.cache_parameters()
    return _make_cached, (cached.__wrapped__, parameters["maxsize"], parameters["typed"])


def _make_cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> _lru_cache_wrapper[Any]:
    return lru_cache(maxsize, typed)(function)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        {CodeType: _with_file_name, _lru_cache_wrapper: _reduce_cached}
    )
