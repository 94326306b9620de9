"""Pickles functions and classes by value, with cloudpickle.

From version 3.1.3 on, cloudpickle gives all code the file name `<dynamic-code>`, so tracebacks of tasks would show
neither file nor line of the user's program. Here code keeps its file name.
"""

from __future__ import annotations

from collections.abc import Callable
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
        _Pickler(file, 5, buffer_callback=keep).dump(value)
        return file.getvalue()


def _with_file_name(code: CodeType) -> tuple[Any, ...]:
    maker, arguments = _reduce_code(code)
    # A copy: whether a text is interned decides on the bytes of the pickle, which are to be the same each time.
    file_name = "".join(code.co_filename)
    return maker, tuple(file_name if type(each) is str and each == DYNAMIC else each for each in arguments)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _with_file_name})
