"""What a field of a model says beside its type and default: flags, aliases, and how it is shown."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


@dataclass(frozen=True, slots=True)
class Alias:
    """Another key for a setting. translate turns its value into the setting's; None: they are the same."""

    name: str
    translate: Callable[[object], object] | None = None


@dataclass(frozen=True, slots=True, init=False)
class Setting:
    """Metadata of one field, inside its `Annotated`."""

    short_flags: tuple[str, ...]
    aliases: tuple[Alias, ...]
    positional: bool
    default_text: str
    metavar: str

    def __init__(
        self,
        *short_flags: str,
        aliases: tuple[Alias, ...] = (),
        positional: bool = False,
        default_text: str = "",
        metavar: str = "",
    ) -> None:
        """default_text says in words what the default is, where its value would not."""
        object.__setattr__(self, "short_flags", short_flags)
        object.__setattr__(self, "aliases", aliases)
        object.__setattr__(self, "positional", positional)
        object.__setattr__(self, "default_text", default_text)
        object.__setattr__(self, "metavar", metavar)


class SettingsModel(BaseModel):
    """Base of all models: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


@dataclass(frozen=True, slots=True)
class Described:
    """One field of one model with all that help, reference and loader say about it."""

    name: str
    field: FieldInfo
    setting: Setting
    group: str

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def default_text(self) -> str:
        """The default in words, empty when the setting is required."""
        if self.setting.default_text:
            return self.setting.default_text
        value = self.field.default
        if value is PydanticUndefined:
            return ""
        if value is None:
            return "none"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            return f"{value:g}"
        if isinstance(value, tuple):
            return ", ".join(str(item) for item in value)
        return str(value)


def flag_of(key: str) -> str:
    """Return the long flag of a key: `io_threads` is `--io-threads`."""
    return "--" + key.replace("_", "-")


@cache
def describe(model: type[SettingsModel]) -> dict[str, Described]:
    """Return the model's fields by name, those of the model itself first, then those of its bases."""
    own: dict[str, dict[str, Described]] = {}
    for name, field in model.model_fields.items():
        home = _home(model, name)
        setting = next((item for item in field.metadata if isinstance(item, Setting)), Setting())
        own.setdefault(home.__qualname__, {})[name] = Described(name, field, setting, group_title(home))
    order = [cls.__qualname__ for cls in model.__mro__]
    return {name: item for home in sorted(own, key=order.index) for name, item in own[home].items()}


def group_title(model: type[SettingsModel]) -> str:
    """Return what the settings of this class have in common: the first line of its docstring, without its stop."""
    return (model.__doc__ or model.__name__).strip().splitlines()[0].rstrip(".")


@cache
def documentation(model: type[SettingsModel]) -> dict[str, str]:
    """Return the docstring under each field. Reads the source: for help and reference only."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not (issubclass(cls, SettingsModel) and cls is not SettingsModel):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                found[statement.target.id] = " ".join(following.value.value.split())
    return found


def _home(model: type[SettingsModel], name: str) -> type[SettingsModel]:
    for cls in model.__mro__:
        if issubclass(cls, SettingsModel) and name in inspect.get_annotations(cls):
            return cls
    raise AssertionError(f"{model.__name__} has no field {name}")
