"""The door for users' own serializers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, cast

from scaler.errors import UsageError


class Serializer(ABC):
    """Base of serializers that users write: for functions, for each argument by itself, and for results.

    A class with static or class methods may be given as it is; a class with plain methods is instantiated without
    arguments. Its code travels to the workers, the libraries that it imports do not: they must be installed there.
    """

    @abstractmethod
    def serialize(self, obj: Any) -> bytes:
        """Return the bytes that `deserialize` turns back into this function, argument or result."""

    @abstractmethod
    def deserialize(self, payload: bytes) -> Any:
        """Return the object that these bytes stand for."""


def bind_serializer(serializer: Any) -> Serializer:
    """Return something with callable serialize and deserialize, from a serializer's class or instance.

    Raises UsageError when it has no such methods, or when its class cannot be instantiated without arguments.
    """
    for name in ("serialize", "deserialize"):
        if not callable(getattr(serializer, name, None)):
            raise UsageError(f"serializer {serializer!r} has no method {name}")
    if isinstance(serializer, type) and not all(
        isinstance(inspect.getattr_static(serializer, name), staticmethod | classmethod)
        for name in ("serialize", "deserialize")
    ):
        try:
            serializer = serializer()
        except TypeError as error:
            raise UsageError(f"serializer {serializer!r} cannot be made without arguments: {error}") from error
    return cast("Serializer", serializer)
