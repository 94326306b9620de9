"""The methods of clients that extensions define. extended.pyi declares their types, and this module imports none of
them: the first use of a method does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from scaler.errors import UsageError
from scaler.plugins import EXTENSIONS, Extension, load


class ExtensionMethod:
    """A method that the first use takes from the extension, and puts in its own place."""

    def __init__(self, extension: str, part: str = "client") -> None:
        """part: the field of the extension that names the class with the method."""
        self._extension = extension
        self._part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._method()
        setattr(self._owner, self._name, method)
        return method.__get__(instance, owner)

    def _method(self) -> Any:
        reference = EXTENSIONS.reference(self._extension)
        if reference is None:
            return _missing(self._name, self._extension)
        extension = cast("Extension", load(reference))
        return vars(load(getattr(extension, self._part)))[self._name]


def _missing(name: str, extension: str) -> Callable[..., Any]:
    def missing(*_args: object, **_kwargs: object) -> None:
        raise UsageError(f"{name} needs the extension {extension!r}, which is not installed")

    return missing


class ExtendedCalls:
    map = ExtensionMethod("maps")
    starmap = ExtensionMethod("maps")
    imap = ExtensionMethod("maps")
    imap_unordered = ExtensionMethod("maps")
    executor = ExtensionMethod("maps")
    get = ExtensionMethod("graphs")


class AsyncExtendedCalls:
    map = ExtensionMethod("maps", "async_client")
    starmap = ExtensionMethod("maps", "async_client")
    imap = ExtensionMethod("maps", "async_client")
    imap_unordered = ExtensionMethod("maps", "async_client")
    executor = ExtensionMethod("maps", "async_client")
    get = ExtensionMethod("graphs", "async_client")
