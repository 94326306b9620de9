"""The base of every settings model, and what its fields say beside type and default: flags, aliases, help.

A model is a frozen dataclass. Its fields are declared once: `key: Annotated[Type, Setting(...)] = default`, with a
docstring below; flags, environment variables, TOML keys, help and docs/settings.md follow from that. A rule about
several fields is the method `check`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import typing
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from scaler.config.values import LoggingFormat, LoggingLevel, Names
from scaler.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Alias:
    """Another key of a setting. translate turns its value into the setting's; None: they are the same."""

    name: str
    translate: Callable[[object], object] | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """Metadata of one field, inside its `Annotated`."""

    short_flags: str = ""
    """Separated by blanks, such as `-el -e`."""
    aliases: tuple[Alias, ...] = ()
    positional: bool = False
    default_text: str = ""
    """The default in words, where its value would not explain it."""
    metavar: str = ""
    variable: str = ""
    """An environment variable for all sections; that of the section is stronger."""


@dataclass(frozen=True, kw_only=True)
class SettingsModel:
    """Base of all models. The constructor checks the rules between fields; `load.py` checks single values."""

    section: ClassVar = ""
    """The section of a file that has its keys, and the middle of its variables' names: SCALER_<SECTION>_<KEY>."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ValueError when fields contradict each other. Overriding methods call this one."""

    def default(self, key: str, value: object) -> None:
        """Give a field that was left empty the value that follows from other fields. For `__post_init__` only."""
        if not getattr(self, key):
            object.__setattr__(self, key, value)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the model of a document made by `to_json`, whose values were checked where they were read.

        Raises ConfigError that names unknown and missing keys.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"not JSON: {error}") from None
        if not isinstance(document, dict):
            raise ConfigError("not a JSON object")
        known = {item.name: item for item in dataclasses.fields(cls)}
        if unknown := [key for key in document if key not in known]:
            raise ConfigError(f"unknown key {unknown[0]!r}")
        if missing := [key for key, item in known.items() if is_required(item) and key not in document]:
            raise ConfigError(f"{', '.join(missing)} missing")
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in document.items()})

    def to_json(self) -> str:
        """Return all values as a JSON document."""
        return json.dumps(vars(self), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(SettingsModel):
    """Logging."""

    logging_level: Annotated[LoggingLevel, Setting("-ll")] = "INFO"
    """Lowest level that is written: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    logging_format: LoggingFormat = "text"
    """Lines of text, or one JSON object per line."""
    logging_paths: Annotated[Names, Setting("-lp", metavar="PATH")] = ("/dev/stdout",)
    """Files that the log is appended to; /dev/stdout and /dev/stderr are the streams of the process."""
    logging_config_file: Annotated[str | None, Setting("-lcf", metavar="FILE")] = None
    """A file with a logging configuration for Python (INI, or JSON of a dictionary) that replaces the keys above."""


@dataclass(frozen=True, slots=True)
class Described:
    """One field of one model with everything that help, reference and loader need."""

    name: str
    annotation: Any
    """The whole type with its rules."""
    base: Any
    """The type without `Annotated`."""
    setting: Setting
    default: object
    required: bool
    group: str

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def default_text(self) -> str:
        """The default in words; empty when the setting is required."""
        if self.setting.default_text:
            return self.setting.default_text
        if self.required:
            return ""
        match self.default:
            case None:
                return "none"
            case bool():
                return str(self.default).lower()
            case float():
                return f"{self.default:.12g}"
            case tuple():
                return ", ".join(map(str, self.default))
        return str(self.default)


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return True when a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def flag_of(key: str) -> str:
    """Return the long flag of a key: `io_threads` is `--io-threads`."""
    return "--" + key.replace("_", "-")


def describe(model: type[SettingsModel]) -> dict[str, Described]:
    """Return the model's fields by name, those of the model itself first, then those of its bases."""
    return dict(_described(typing.cast("Hashable", model)))


@cache
def _described(model: Any) -> dict[str, Described]:
    hints = typing.get_type_hints(model, include_extras=True)
    fields = {item.name: item for item in dataclasses.fields(model)}
    found: dict[str, Described] = {}
    for home in model.__mro__:
        for name in inspect.get_annotations(home):
            if name not in fields or name in found:
                continue
            annotation = hints[name]
            rules = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
            base = typing.get_args(annotation)[0] if rules else annotation
            setting = next((rule for rule in rules if isinstance(rule, Setting)), Setting())
            field = fields[name]
            found[name] = Described(
                name, annotation, base, setting, field.default, is_required(field), group_title(home)
            )
    return found


def group_title(model: type) -> str:
    """Return what the settings of this class have in common: the first line of its docstring without the full stop."""
    return (model.__doc__ or model.__name__).strip().splitlines()[0].rstrip(".")


def documentation(model: type[SettingsModel]) -> dict[str, str]:
    """Return the docstring under each field. Reads the source: for help and reference only."""
    return dict(_documented(typing.cast("Hashable", model)))


@cache
def _documented(model: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls is SettingsModel or not inspect.get_annotations(cls):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
