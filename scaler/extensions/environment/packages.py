"""The installed packages that a function imports, their versions, and the differences between two environments.

Reads versions from folder names, because importing importlib.metadata takes longer than most functions run.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import getattr_static
from types import FunctionType, MethodType, ModuleType
from typing import Any

from scaler.processes import after_fork
from scaler.serialization.reading import codes_in, names_in

Packages = tuple[tuple[str, str], ...]
MAX_PACKAGES = 20
MAX_FOLDERS = 64
MAX_FUNCTIONS = 200
"""Maximum number of functions searched per call, including referenced functions."""

_METADATA = ".dist-info"
_IMPORT = dis.opmap["IMPORT_NAME"]
_KNOWN = frozenset({*sys.stdlib_module_names, "__main__", "__mp_main__", "builtins", "scaler", "cloudpickle"})
"""Modules without a version, or whose version is compared when a peer connects."""


def packages_of(function: Callable[..., Any]) -> Packages:
    """Return the packages that a function imports directly or through functions and modules that it references.

    Includes modules with the name of a package, and imported modules with a version.
    """
    versions = ((name, version_of(name)) for name in sorted(_modules_of(function)))
    return tuple((name, version) for name, version in versions if version)[:MAX_PACKAGES]


def differences(packages: Packages) -> str:
    """Describe which of these packages are missing here or differ in version. Empty if there are no differences."""
    parts = []
    for name, version in packages:
        here = version_of(name)
        if here and here != version:
            parts.append(f"{name} {here} (the client has {version})")
        elif not here and name not in sys.modules and importlib.util.find_spec(name) is None:
            parts.append(f"no {name} (the client has {version})")
    return ", ".join(parts)


def version_of(name: str) -> str:
    normalized = _normalized(name)
    for packages in _installed(tuple(sys.path)):
        if normalized in packages:
            return packages[normalized]
    found = getattr(sys.modules.get(name), "__version__", "")
    return found if isinstance(found, str) else ""


@functools.lru_cache(4)
def _installed(folders: Sequence[str]) -> list[dict[str, str]]:
    """Return package versions by folder. Merging the folders would copy the memory of all names in forked processes."""
    found: list[dict[str, str]] = []
    for folder in folders:
        with contextlib.suppress(OSError):
            found.append(_packages_in(folder or ".", os.stat(folder or ".").st_mtime_ns))  # noqa: PTH116
    return found


@functools.lru_cache(MAX_FOLDERS)
def _packages_in(folder: str, _changed_ns: int) -> dict[str, str]:
    """Return the versions of the packages in one folder. A forked process rereads only changed folders."""
    found: dict[str, str] = {}
    for name in os.listdir(folder):  # noqa: PTH208
        if name.endswith(_METADATA):
            package, _, version = name.removesuffix(_METADATA).rpartition("-")
            found.setdefault(_normalized(package), version)
    return found


after_fork(_installed.cache_clear)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _modules_of(function: Callable[..., Any]) -> set[str]:
    found: set[str] = set()
    pending: list[Any] = [function]
    seen: set[int] = set()
    while pending and len(seen) < MAX_FUNCTIONS:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        with contextlib.suppress(Exception):  # inspecting may run user code
            _look_into(value, found, pending)
    return {name for name in found if name and name not in _KNOWN}


def _look_into(value: Any, found: set[str], pending: list[Any]) -> None:
    if isinstance(value, functools.partial):
        pending += [value.func, *(each for each in value.args if callable(each))]
    elif isinstance(value, MethodType | functools._lru_cache_wrapper):  # noqa: SLF001 (no public name)
        pending.append(value.__func__ if isinstance(value, MethodType) else value.__wrapped__)
    elif isinstance(value, ModuleType):
        found.add(_top(value.__name__))
    elif type(several := getattr_static(value, "functions", None)) is list:  # for a chunk of a graph's nodes
        pending += several
    else:
        named = value if isinstance(value, FunctionType | type) or hasattr(value, "__name__") else type(value)
        top = _top(str(getattr(named, "__module__", "") or ""))
        found.add(top)
        if isinstance(value, FunctionType) and (top == "__main__" or not version_of(top)):
            for code in codes_in(value.__code__):
                if _IMPORT in code.co_code[::2]:
                    found.update(
                        _top(str(each.argval)) for each in dis.get_instructions(code) if each.opcode == _IMPORT
                    )
            pending += _mentions(value)


def _mentions(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable is unassigned
            continue
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _top(name: str) -> str:
    return name.partition(".")[0]
