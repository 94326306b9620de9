"""From flags, environment and TOML to one checked model: flag over environment over TOML over default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from scaler.config.files import Section, title_of
from scaler.config.setting import Alias, Described, SettingsModel, describe, flag_of
from scaler.errors import ConfigError, nearest

NEAR_VARIABLE = 0.8
"""How alike (0 to 1) an unknown environment variable and a key must be to be taken for a mistyped one."""

M = TypeVar("M", bound=SettingsModel)


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that one component's configuration comes from."""

    section: str
    """Middle part of the environment variables' names: SCALER_<SECTION>_<KEY>."""
    flags: Mapping[str, object] = field(default_factory=dict)
    """Text, or a list of texts, by key or alias."""
    environment: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    table: Section | None = None
    implied: Mapping[str, object] = field(default_factory=dict)
    """Values that follow from other components: below TOML, above the defaults."""


@dataclass(frozen=True, slots=True)
class _Given:
    key: str
    """As it was written: the setting's name or an alias."""
    value: object
    origin: str
    typed: bool
    """The value has the type that it was written with (TOML); otherwise it is text."""


def resolve(model: type[M], sources: Sources) -> M:
    """Return the model with the value of the strongest source for each key.

    Raises ConfigError that names where the value came from, what it is, and what was expected.
    """
    known = _known_keys(model)
    given: dict[str, _Given] = {name: _Given(name, value, name, True) for name, value in sources.implied.items()}
    for source in (_from_table(sources, known), _from_environment(sources, known), _from_flags(sources)):
        given |= _by_setting(source, known)
    values = {name: _validated(model, name, _alias_of(name, known[item.key]), item) for name, item in given.items()}
    missing = [item for item in describe(model).values() if item.field.is_required() and item.name not in values]
    if missing:
        raise ConfigError(_missing_text(missing[0], sources))
    try:
        return model(**values)
    except ValidationError as error:
        where = f"{sources.file}, {sources.table.title}: " if sources.table else ""
        raise ConfigError(where + reason_of(error)) from None


def reason_of(error: ValidationError) -> str:
    """Return in words what a model complains about."""
    return "; ".join(_expectation(item) for item in error.errors())


def variable_of(section: str, key: str) -> str:
    """Return the environment variable of a key."""
    return f"SCALER_{section}_{key}".upper()


_Known = dict[str, list[tuple[Described, Alias | None]]]
"""The settings that a key sets: an alias may stand for several, each of which takes its part of the value."""


def _known_keys(model: type[SettingsModel]) -> _Known:
    known: _Known = {name: [(item, None)] for name, item in describe(model).items()}
    for item in describe(model).values():
        for alias in item.setting.aliases:
            known.setdefault(alias.name, []).append((item, alias))
    return known


def _from_table(sources: Sources, known: _Known) -> Iterator[_Given]:
    if sources.table is None:
        return
    where = f"{sources.file}, {sources.table.title}"
    for key, value in sources.table.values.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, list(known))}")
        yield _Given(key, value, f"{where}: {key}", True)


def _from_environment(sources: Sources, known: _Known) -> Iterator[_Given]:
    prefix = variable_of(sources.section, "")
    for variable, text in sources.environment.items():
        if not variable.startswith(prefix) or variable == variable_of(sources.section, "type"):
            continue  # a table or a command has its type by itself
        key = variable.removeprefix(prefix).lower()
        if key in known:
            yield _Given(key, text, f"environment: {variable}", False)
        # Others set variables of this shape too (Kubernetes for a service of this name), so only near ones are errors.
        elif near := get_close_matches(key, known, n=1, cutoff=NEAR_VARIABLE):
            raise ConfigError(f"environment: unknown {variable}; did you mean {variable_of(sources.section, near[0])}?")


def _from_flags(sources: Sources) -> Iterator[_Given]:
    for key, value in sources.flags.items():
        yield _Given(key, value, f"command line: {flag_of(key)}", False)


def _by_setting(source: Iterable[_Given], known: _Known) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for item in source:
        for setting, _ in known[item.key]:
            name = setting.name
            if name in found:
                both = f"{item.key} and {found[name].key}"
                raise ConfigError(f"{item.origin}: {both} set the same thing; give one of them")
            found[name] = item
    return found


def _alias_of(name: str, meant: list[tuple[Described, Alias | None]]) -> Alias | None:
    return next(alias for setting, alias in meant if setting.name == name)


def _validated(model: type[SettingsModel], name: str, alias: Alias | None, given: _Given) -> object:
    value = tuple(given.value) if isinstance(given.value, list) else given.value
    if isinstance(value, tuple) and len(value) == 1 and not given.typed:
        value = value[0]
    try:
        if alias is not None and alias.translate is not None:
            value = alias.translate(value)
        return _adapter(model, name).validate_python(value, strict=given.typed or None)
    except ValidationError as error:
        # A union of types has one complaint per type; the first is the one for a value that is there.
        reason = _expectation(error.errors()[0])
    except ValueError as error:
        reason = str(error)
    shown = _shown(given.value)
    # Most reasons about texts quote them; once is enough.
    raise ConfigError(f"{given.origin}: {reason}" if f" {shown}:" in reason else f"{given.origin} = {shown}: {reason}")


@cache
def _adapter(model: type[SettingsModel], name: str) -> TypeAdapter[Any]:
    info = model.model_fields[name]
    kind: Any = info.annotation
    return TypeAdapter(Annotated[(kind, *info.metadata)] if info.metadata else kind)


def _expectation(error: ErrorDetails) -> str:
    cause = error.get("ctx", {}).get("error")
    if cause is not None:
        return str(cause)
    return error["msg"].replace("Input should be", "must be", 1)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _missing_text(item: Described, sources: Sources) -> str:
    flag = f"{item.setting.metavar} or {item.flag}" if item.setting.positional else item.flag
    table = sources.table.title if sources.table else title_of(sources.section)
    where = f" of {sources.file}" if sources.file else " of a file given with --config"
    return (
        f"{item.name} is missing: give it as {flag}, as {item.name} in {table}{where}, "
        f"or in the environment as {variable_of(sources.section, item.name)}"
    )
