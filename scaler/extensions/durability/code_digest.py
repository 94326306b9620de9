"""Digest of a function's code, which changes whenever the function's behaviour may have changed. Pure.

Covers the function and, recursively, the functions and classes it refers to. Installed modules count by name only. Also
covers constants, defaults, and picklable values of globals and cells. Does not cover files or module attributes."""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from scaler.errors import UsageError
from scaler.ids import content_id
from scaler.serialization import dump
from scaler.serialization.reading import names_in

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_WRAPPERS = (staticmethod, classmethod, functools._lru_cache_wrapper)
_VERSION = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def code_digest(function: object) -> bytes:
    """Return a digest of 16 bytes. Raises UsageError for a value that cannot be called."""
    return content_id(_VERSION.encode(), *_Walk().parts(function, is_root=True))


class _Walk:
    def __init__(self) -> None:
        self._seen: set[int] = set()

    def parts(self, value: Any, *, is_root: bool = False) -> Iterator[bytes]:
        if isinstance(value, functools.partial):
            yield from self.parts(value.func, is_root=True)
            yield from self._pickled((value.args, value.keywords))
        elif isinstance(value, MethodType):
            yield from self.parts(value.__func__)
            yield from self.parts(value.__self__)
        elif isinstance(value, FunctionType | type):
            yield from self._named(value)
        elif isinstance(value, property):
            for function in (value.fget, value.fset, value.fdel):
                yield from self.parts(function)
        elif isinstance(value, _WRAPPERS):
            yield from self.parts(value.__wrapped__)
        elif isinstance(value, functools.cached_property):
            yield from self.parts(value.func)
        elif isinstance(value, ModuleType | BuiltinFunctionType):
            yield f"{getattr(value, '__module__', '')}.{value.__name__}".encode()
            owner = getattr(value, "__self__", None)
            if not isinstance(owner, ModuleType):
                yield from self._pickled(owner)
        elif is_root and not callable(value):
            raise UsageError(f"{value!r} is not callable, so it has no results to cache")
        else:
            yield from self._pickled(value)
            yield from self._named(type(value))
            if isinstance(value, dict | list | tuple):
                for each in value.values() if isinstance(value, dict) else value:
                    if callable(each):
                        yield from self.parts(each)

    def _named(self, value: FunctionType | type) -> Iterator[bytes]:
        yield f"{value.__module__}.{value.__qualname__}".encode()
        if id(value) in self._seen or _is_installed(value):
            return
        self._seen.add(id(value))
        if isinstance(value, type):
            for name, found in sorted(vars(value).items()):
                if isinstance(found, (FunctionType, property, *_WRAPPERS)) or not name.startswith("__"):
                    yield name.encode()
                    yield from self.parts(found)
            for base in value.__bases__:
                yield from self._named(base)
            return
        yield from self._code(value.__code__)
        for carried in (value.__defaults__, value.__kwdefaults__):
            yield from self._pickled(carried)
        yield from self._members(vars(value))
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # the variable is unassigned
                yield from self.parts(cell.cell_contents)
        for name in sorted(set(names_in(value.__code__))):
            if name in value.__globals__:
                yield name.encode()
                yield from self.parts(value.__globals__[name])

    def _code(self, code: CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags)).encode()
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._code(constant)
            elif isinstance(constant, frozenset):
                yield repr(sorted(map(repr, constant))).encode()
            else:
                yield repr(constant).encode()

    def _pickled(self, value: object) -> Iterator[bytes]:
        try:
            parts = dump(value)
        except Exception:  # noqa: BLE001 (pickling runs user code)
            # The function may use any part of the value.
            yield type(value).__qualname__.encode()
            if id(value) in self._seen:
                return
            self._seen.add(id(value))
            if isinstance(value, dict):
                yield from self._members({repr(key): each for key, each in value.items()})
            elif isinstance(value, list | tuple | set | frozenset):
                for each in value:
                    yield from self.parts(each)
            else:
                yield from self._members(getattr(value, "__dict__", {}))
        else:
            yield from map(bytes, parts)

    def _members(self, members: Mapping[str, Any]) -> Iterator[bytes]:
        for name in sorted(members):
            yield name.encode()
            yield from self.parts(members[name])


def _is_installed(value: FunctionType | type) -> bool:
    file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
    return value.__module__ in sys.builtin_module_names or file.startswith(_INSTALLED)
