"""TOML files: sections and their deprecated names, before validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tomli

from scaler.config.compatibility import ADAPTERS, GUI
from scaler.errors import ConfigError, nearest
from scaler.paths import local_path

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


def read_file(path: str) -> ConfigFile:
    """Read a file. Raises ConfigError if it is unreadable, not TOML, or has an unknown section."""
    try:
        document = tomli.loads(_text_of(path))
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path!r}: {error.strerror}") from None
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    for name, value in document.items():
        if name not in SECTIONS:
            if isinstance(value, dict | list):
                raise ConfigError(f"{path}: unknown section [{name}]{nearest(name, list(SECTIONS))}")
            raise ConfigError(f"{path}: the key {name!r} is above the first section; move it below its [section]")
    tables = {name: section for name in SECTIONS if (section := _single(path, document, name)) is not None}
    if GUI in tables:
        if WEBUI in tables:
            raise ConfigError(f"{path}: [{WEBUI}] and [{GUI}] are two names for one section; give only one")
        tables[WEBUI] = tables.pop(GUI)
    adapters = [
        # The deprecated sections have no manager types or names.
        Section(section.title, {"worker_manager_id": name, **section.values, "type": kind})
        for name, kind in ADAPTERS.items()
        if (section := tables.pop(name, None)) is not None
    ]
    return ConfigFile(path, tables, (*_managers(path, document), *adapters))


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
    one = len(tables) == 1
    return [
        Section(f"[[{WORKER_MANAGER}]]" if one else f"[[{WORKER_MANAGER}]] number {number}", table)
        for number, table in enumerate(tables, 1)
    ]
