"""Pure: the TOML texts of credentials, entries and servers' keys. No error shows a value, which may be a secret."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import TypeVar

from scaler.errors import ConfigError

T = TypeVar("T")
MAX_NAME_CHARACTERS = 60
MAX_CHARACTERS = 64 * 1024
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
_KEY = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
"""32 bytes in z85, as ZeroMQ writes them."""


class Document:
    """One table of a TOML text. Its readers raise ConfigError with the place of what is wrong, without the value."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self._where = where

    @classmethod
    def parse(cls, text: str, where: str) -> Document:
        """Return the outer table of a text. where: names the text in errors, such as its file."""
        try:
            if len(text) <= MAX_CHARACTERS:
                return cls(tomllib.loads(text), where)
        except (tomllib.TOMLDecodeError, RecursionError):
            pass  # the error may quote the text
        raise ConfigError(f"{where} is no credential or key of Scaler: `scaler keys add` writes one")

    def table(self, key: str) -> Document:
        """Return a table inside this one."""
        return Document(self._of(key, dict), f"{self._where}, [{key}]")

    def has(self, key: str) -> bool:
        """Return whether a key is given."""
        return key in self._values

    def only(self, known: Collection[str]) -> None:
        """Raise when another key is given: a misspelt `expires` must not mean never."""
        if other := sorted(self._values.keys() - set(known)):
            raise ConfigError(f"{self._where}: unknown key {other[0][:MAX_NAME_CHARACTERS]!r}")

    def name(self, key: str = "name", suffix: str = "") -> str:
        """Return a name that `is_name`, maybe with this suffix."""
        if is_name((text := self._of(key, str)).removesuffix(suffix)):
            return text
        raise ConfigError(f"{self._where}: {key} must be {NAME_RULE}")

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """Return a text that is one of the known ones."""
        if (text := self._of(key, str)) in known:
            return text
        raise ConfigError(f"{self._where}: {key} must be one of {', '.join(known)}")

    def key(self, key: str) -> str:
        """Return a public or secret key."""
        if is_key(text := self._of(key, str)):
            return text
        raise ConfigError(f"{self._where}: {key} must be a key of 40 characters")

    def time(self, key: str) -> datetime | None:
        """Return a time with its zone, or None without one."""
        if not self.has(key):
            return None
        if (found := self._of(key, datetime)).tzinfo is None:
            raise ConfigError(f"{self._where}: {key} must have a time zone, such as 2030-01-31T12:00:00Z")
        return found

    def required_time(self, key: str) -> datetime:
        """Return a time with its zone."""
        if (found := self.time(key)) is not None:
            return found
        raise ConfigError(f"{self._where}: {key} is missing")

    def _of(self, key: str, kind: type[T]) -> T:
        value = self._values.get(key)
        if isinstance(value, kind):
            return value
        raise ConfigError(f"{self._where}: {key} is {'wrong' if key in self._values else 'missing'}")


NAME_RULE = f"a name: at most {MAX_NAME_CHARACTERS} letters, digits, - and _, with a letter or digit first"


def is_name(text: str) -> bool:
    """Return whether a text can name a peer or a cluster."""
    return _NAME.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """Return whether a text has the form of a public or secret key."""
    return _KEY.fullmatch(text) is not None


def lines(values: Mapping[str, str | datetime | None]) -> str:
    """Return the lines `key = value` of a TOML table; what is None is left out."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in values.items() if value is not None)


def shown(time: datetime) -> str:
    """Return a time as people read it: 2030-01-31 12:00 UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _toml(value: str | datetime) -> str:
    return json.dumps(value) if isinstance(value, str) else f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
