"""Base class of the settings models, and field metadata: flags, aliases, and help. A model is a frozen dataclass that
declares each field once: `key: Annotated[Type, Setting(...)] = default`, followed by a docstring. Flags, environment
variables, TOML keys, help, and docs/settings.md are derived from the models. The method `check` validates combinations
of fields."""

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
    """Alternative key of a setting. translate: converts its value; None keeps the value."""

    name: str
    translate: Callable[[object], object] | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """Metadata of a field, inside `Annotated`."""

    short_flags: str = ""  # separated by spaces, such as `-el -e`
    aliases: tuple[Alias, ...] = ()
    positional: bool = False
    default_text: str = ""  # shown instead of a default value that does not explain itself
    metavar: str = ""
    variable: str = ""  # environment variable for all sections; the section's own variable takes precedence


@dataclass(frozen=True, kw_only=True)
class SettingsModel:
    """Base of all models. The constructor validates combinations of fields; `load.py` validates single values."""

    section: ClassVar = ""
    """Section in files. Also part of environment variables: SCALER_<SECTION>_<KEY>."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ValueError if fields contradict each other. An override must call the base method."""

    def default(self, key: str, value: object) -> None:
        """Set an empty field to a derived value. Only for `__post_init__`."""
        if not getattr(self, key):
            object.__setattr__(self, key, value)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse and validate a document from `to_json`. Raises ConfigError for unknown or missing keys."""
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
        return json.dumps(vars(self), separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class LoggingConfig(SettingsModel):
    """Logging."""

    logging_level: Annotated[LoggingLevel, Setting("-ll")] = "INFO"
    """Minimum level of log records: DEBUG, INFO, WARNING, ERROR, or CRITICAL."""
    logging_format: LoggingFormat = "text"
    """Lines of text, or one JSON object per line."""
    logging_paths: Annotated[Names, Setting("-lp", metavar="PATH")] = ("/dev/stdout",)
    """Files to append log records to. /dev/stdout and /dev/stderr are the process's streams."""
    logging_config_file: Annotated[str | None, Setting("-lcf", metavar="FILE")] = None
    """File with Python logging configuration (INI, or JSON for dictConfig). Replaces the other logging settings."""


@dataclass(frozen=True, slots=True)
class Described:
    """One field of a model, for help, reference, and loading."""

    name: str
    annotation: Any  # the full type, including validation rules
    base: Any  # the type without `Annotated`
    setting: Setting
    default: object
    required: bool
    group: str

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def default_text(self) -> str:
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
                return ", ".join(map(str, self.default)) or "none"
        return str(self.default)


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def flag_of(key: str) -> str:
    return "--" + key.replace("_", "-")


def describe(model: type[SettingsModel]) -> dict[str, Described]:
    """Return the model's fields by name. Inherited fields are last."""
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
            hint = hints[name]
            rules = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
            base = typing.get_args(hint)[0] if rules else hint
            setting = next((rule for rule in rules if isinstance(rule, Setting)), Setting())
            field = fields[name]
            found[name] = Described(name, hint, base, setting, field.default, is_required(field), group_title(home))
    return found


def group_title(model: type) -> str:
    """Return the title of a settings class: the first line of its docstring without the full stop."""
    return (model.__doc__ or model.__name__).strip().splitlines()[0].rstrip(".")


def documentation(model: type[SettingsModel]) -> dict[str, str]:
    """Return the docstring of each field. Parses the source, so use it only for help and reference."""
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
