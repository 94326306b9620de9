"""Reads TOML files, and merges flags, environment, TOML, and defaults (by precedence) into a validated model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

import tomli
from pydantic import ConfigDict, TypeAdapter, ValidationError

from scaler.config.compatibility import ADAPTERS, GUI, RETIRED, without_retired
from scaler.config.setting import Alias, Described, SettingsModel, describe, flag_of
from scaler.errors import ConfigError, nearest
from scaler.paths import local_path
from scaler.plugins import OwnProcess, own_processes

WORKER_MANAGER = "worker_manager"
WEBUI = "webui"
SECTIONS = ("object_storage_server", "scheduler", WORKER_MANAGER, "cluster", *ADAPTERS, WEBUI, GUI, "top")

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    values: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: str
    tables: Mapping[str, Section]
    worker_managers: tuple[Section, ...]
    processes: Mapping[str, OwnProcess] = field(default_factory=dict)
    """The extensions' processes, by section."""


def read_file(path: str) -> ConfigFile:
    """Read a file. Raises ConfigError if it is unreadable, is not TOML, or has an unknown section."""
    try:
        document = tomli.loads(_text_of(path))
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path!r}: {error.strerror}") from None
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    processes: dict[str, OwnProcess] = {}
    for name, value in document.items():
        if name not in SECTIONS:
            if not isinstance(value, dict | list):
                raise ConfigError(f"{path}: the key {name!r} is above the first section; move it below its [section]")
            found = own_processes()
            if name not in found:
                raise ConfigError(f"{path}: unknown section [{name}]{nearest(name, [*SECTIONS, *found])}")
            processes[found[name].section] = found[name]
    known = (*SECTIONS, *processes)
    tables = {name: section for name in known if (section := _single(path, document, name)) is not None}
    for name, process in processes.items():
        if name not in tables:
            raise ConfigError(f"{path}: [[{process.arrays[0]}]] has no effect without [{name}]: add this section")
        given = {key: document[key] for key in process.arrays if key in document}
        arrays = {key: [value] if isinstance(value, dict) else value for key, value in given.items()}
        tables[name] = Section(f"[{name}]", {**tables[name].values, **arrays})
    if GUI in tables:
        if WEBUI in tables:
            raise ConfigError(f"{path}: [{WEBUI}] and [{GUI}] are two names for one section; use only one")
        tables[WEBUI] = tables.pop(GUI)
    adapters = [
        # Deprecated sections have no manager types or names.
        Section(section.title, {"worker_manager_id": name, **section.values, "type": kind})
        for name, kind in ADAPTERS.items()
        if (section := tables.pop(name, None)) is not None
    ]
    return ConfigFile(path, tables, (*_managers(path, document), *adapters), processes)


def title_of(section: str) -> str:
    return f"[[{section}]]" if section == WORKER_MANAGER else f"[{section}]"


def _text_of(path: str) -> str:
    data = local_path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError(
            f"{path} is not a TOML file: byte 0x{data[error.start]:02x} is not UTF-8 "
            f"(line {line}, column {column}); save the file as UTF-8"
        ) from None


def _single(path: str, document: Table, name: str) -> Section | None:
    value = document.get(name)
    if value is None or name == WORKER_MANAGER:
        return None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {name} must be one table, [{name}]")
    return Section(f"[{name}]", value)


def _managers(path: str, document: Table) -> list[Section]:
    value = document.get(WORKER_MANAGER, [])
    tables = [value] if isinstance(value, dict) else value
    if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
        raise ConfigError(f"{path}: {WORKER_MANAGER} must be an array of tables, [[{WORKER_MANAGER}]]")
    titles = [f"[[{WORKER_MANAGER}]] number {number}" for number in range(1, len(tables) + 1)]
    return list(map(Section, titles if len(tables) > 1 else [f"[[{WORKER_MANAGER}]]"], tables))


NEAR_VARIABLE = 0.8  # similarity (0 to 1) at which an unknown environment variable counts as a mistyped key

M = TypeVar("M", bound=SettingsModel)

TypeAdapter(str)  # loads the rest of pydantic when this module is imported, not in a user program's first call


@dataclass(frozen=True, slots=True)
class Sources:
    flags: dict[str, object] = field(default_factory=dict)  # strings, or lists of strings, by key or alias
    environment: Mapping[str, str] = field(default_factory=dict)
    file: ConfigFile | None = None
    table: Section | None = None  # values from the component's table in the file
    implied: Mapping[str, object] = field(default_factory=dict)  # values from other components; TOML takes precedence


@dataclass(frozen=True, slots=True)
class _Given:
    key: str  # as written by the user: the setting's name or an alias
    value: object
    origin: str
    text: bool  # a string from a flag or the environment; otherwise a TOML value
    alias: Alias | None


_Known = dict[str, list[tuple[Described, Alias | None]]]  # values by key; an alias may set parts of several settings


def resolve(model: type[M], sources: Sources) -> M:
    """Return the model, with each key's value from the source with the highest precedence. Raises ConfigError, which
    names the origin, the value, and the expected form."""
    described = describe(model)
    known: _Known = {name: [(item, None)] for name, item in described.items()}
    for item in described.values():
        for alias in item.setting.aliases:
            known.setdefault(alias.name, []).append((item, alias))
    where = f"{sources.file.path}, {sources.table.title}: " if sources.file and sources.table else ""
    given = (
        _by_setting(known, sources.implied, "", str, text=False)
        | _by_setting(known, sources.table.values if sources.table else {}, where, str, text=False)
        | _by_setting(
            known, _environment(model, sources, known), "environment: ", lambda key: variable_of(model, key), text=True
        )
        | _by_setting(known, sources.flags, "command line: ", flag_of, text=True)
    )
    values: dict[str, Any] = {name: _checked(described[name], one) for name, one in given.items()}
    missing = [item for item in described.values() if item.required and item.name not in values]
    if missing:
        raise ConfigError(_missing_text(model, missing[0], sources))
    try:
        return model(**values)
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from None


def model_of(model: type[M], values: Mapping[str, object]) -> M:
    """Return a settings model with these values, as from a file. Raises ConfigError."""
    return resolve(model, Sources(implied=values))


def variable_of(model: type[SettingsModel], key: str) -> str:
    return f"SCALER_{model.section}_{key}".upper()


def _by_setting(
    known: _Known, values: Mapping[str, object], where: str, shown: Callable[[str], str], *, text: bool
) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for key, value in without_retired(values).items():
        if key not in known:
            raise ConfigError(f"{where}unknown key {key!r}{nearest(key, list(known))}")
        origin = f"{where}{shown(key)}"
        for setting, alias in known[key]:
            if setting.name in found:
                both = f"{key} and {found[setting.name].key}"
                raise ConfigError(f"{origin}: {both} set the same value; set only one")
            found[setting.name] = _Given(key, value, origin, text, alias)
    return found


def _environment(model: type[SettingsModel], sources: Sources, known: _Known) -> dict[str, str]:
    prefix = variable_of(model, "")
    common = {name: item.setting.variable for name, [(item, alias), *_] in known.items() if alias is None}
    found = {key: sources.environment[name] for key, name in common.items() if sources.environment.get(name)}
    for variable, text in sources.environment.items():
        if not variable.startswith(prefix) or variable == variable_of(model, "type"):
            continue  # the type of a worker manager comes from its table or command
        key = variable.removeprefix(prefix).lower()
        if key in known or key in RETIRED:
            found[key] = text
        # Kubernetes sets variables with this prefix for a service named scaler, so only near matches are errors.
        elif near := get_close_matches(key, known, n=1, cutoff=NEAR_VARIABLE):
            raise ConfigError(f"environment: unknown {variable}; did you mean {variable_of(model, near[0])}?")
    return found


def _checked(setting: Described, given: _Given) -> object:
    value = tuple(given.value) if isinstance(given.value, list) else given.value
    if given.text and isinstance(value, tuple) and len(value) == 1:
        [value] = value
    try:
        if given.alias is not None and given.alias.translate is not None:
            value = given.alias.translate(value)
        adapter: TypeAdapter[Any] = TypeAdapter(setting.annotation, config=ConfigDict(allow_inf_nan=False))
        return adapter.validate_python(value, strict=None if given.text else True)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        reason = first["msg"].replace("Input should be", "must be", 1) if cause is None else str(cause)
    except ValueError as error:
        reason = str(error)
    shown = str(given.value).lower() if isinstance(given.value, bool) else repr(given.value)
    # Most reasons already quote a string.
    raise ConfigError(f"{given.origin}: {reason}" if f" {shown}:" in reason else f"{given.origin} = {shown}: {reason}")


def _missing_text(model: type[SettingsModel], item: Described, sources: Sources) -> str:
    flag = f"{item.setting.metavar} or {item.flag}" if item.setting.positional else item.flag
    table = sources.table.title if sources.table else title_of(model.section)
    where = f" of {sources.file.path}" if sources.file else " name of the file from --config"
    return (
        f"{item.name} is missing: set it as {flag}, as {item.name} in {table}{where}, "
        f"or in the environment as {variable_of(model, item.name)}"
    )
