"""Policies, worker manager types, and extensions by name. Built-in plug-ins are in the tables below instead of entry
points, because reading the entry points of all packages costs a process 2 to 4 MB."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from scaler.errors import UsageError, nearest


class Plugins:
    """The plug-ins of one kind. A reference is `module:attribute`, as in an entry point."""

    def __init__(self, group: str, built_in: Mapping[str, str]) -> None:
        """group: group of the entry points. built_in: references by name, which installed packages cannot replace."""
        self.group = group
        self.built_in = MappingProxyType(built_in)

    def reference(self, name: str) -> str | None:
        return self.built_in.get(name) or self._installed().get(name)

    def names(self) -> list[str]:
        return sorted({**self._installed(), **self.built_in})

    def _installed(self) -> dict[str, str]:
        from importlib.metadata import entry_points  # noqa: PLC0415 (see the module)

        return {entry.name: entry.value for entry in entry_points(group=self.group)}


def load(reference: str) -> object:
    """Return the referenced object. Raises AttributeError and any import error."""
    module, _, attribute = reference.partition(":")
    names = [name for name in attribute.split("[")[0].strip().split(".") if name]  # may be followed by "[extras]"
    found: object = reduce(getattr, names, importlib.import_module(module.strip()))
    return found


def _references(form: str, names: str) -> dict[str, str]:
    return {name: form.format(name) for name in names.split()}


POLICIES = Plugins(
    "scaler.scaling_policies",
    {
        "simple": "scaler.policy.simple:SimplePolicy",
        "target_v1": "scaler.policy.target:TargetPolicy",
        "waterfall_v1": "scaler.policy.waterfall:WaterfallPolicy",
    },
)
WORKER_MANAGERS = Plugins(
    "scaler.worker_managers",
    _references(
        "scaler.worker_manager.{}:TYPE",
        "baremetal_native aws_raw_ecs aws_hpc kubernetes aws_ec2 orb_aws_ec2 slurm symphony ssh",
    ),
)


@dataclass(frozen=True, slots=True)
class WorkerManagerType:
    """A worker manager type, as named by an entry point of the group scaler.worker_managers. References load on demand.

    backend: returns a `Backend` for a configuration. settings: the model of the configuration. provision: the function
    behind `setup`, `show`, and `teardown`; empty if the type needs no cloud resources.
    """

    backend: str
    settings: str = "scaler.config.worker_managers:WorkerManagerConfig"
    provision: str = ""


def worker_manager_type(name: str) -> WorkerManagerType:
    """Return the worker manager type with this name. Raises UsageError if it is not installed."""
    reference = WORKER_MANAGERS.reference(name)
    if reference is None:
        known = WORKER_MANAGERS.names()
        raise UsageError(f"no worker manager of type {name!r} is installed{nearest(name, known)}")
    found = load(reference)
    if not isinstance(found, WorkerManagerType):
        raise UsageError(f"the entry point {name} = {reference!r} is not a scaler.plugins.WorkerManagerType")
    return found


EXTENSIONS = Plugins(
    "scaler.extensions",
    _references(
        "scaler.extensions.{}:EXTENSION",
        "asynchronous audit calls compression costs data_plane durability environment explain failures gangs "
        "graphs health history http in_process isolation languages logs maps near nested profiles queries resources "
        "scaling sharing standby streams telemetry timeline units",
    ),
)


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that readers query, newest rows first. `rows` of the extension's scheduler part returns the rows.

    row: reference of a NamedTuple with a `Column` for each field. most: maximum rows per answer. parameter: name and
    purpose of the search text. page: the web page that shows the table, or empty. key: opens the table in scaler_top.
    for_monitors: only monitors and admins may read the table.
    """

    name: str
    title: str
    row: str
    most: int
    parameter: tuple[str, str] = ("search", "Text to search for in the row.")
    page: str = ""
    key: str = ""
    for_monitors: bool = False

    @property
    def kind(self) -> type[NamedTuple]:
        return cast("type[NamedTuple]", load(self.row))


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """An optional process, which the launcher starts for a file with its section. References load on demand.

    settings: a SettingsModel with this section, which may have the keys of SecurityConfig and scheduler_address. run:
    called with the settings, returns the exit code. arrays: arrays of tables in the file, each a key of the settings.
    """

    section: str
    settings: str
    run: str
    arrays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension. All parts are references, `module:attribute`; missing parts are empty.

    settings: a SettingsModel, whose keys join [scheduler]. scheduler: called with the settings, returns a
    SchedulerPart. performer: called with the settings and the scheduler's `Surroundings`, returns a Performer, or None
    if the settings disable it. requires: names of other extensions.

    scaling: called with a policy's Allocation, returns a `scaler.scheduler.core.cluster.Scaling`. policy: called with
    the settings and the scheduler's `step`, returns an object like `scaler.extensions.scaling.policy.PolicyCalls`.

    monitor: called with the model of the cluster, returns a `scaler.monitor.model.MonitorPart`. tables, routes: tuples
    of `scaler.monitor.tables.Table` and `scaler.monitor.web.routes.ApiRoute`. page: a web page module `package:NAME`,
    in the file page/NAME.js of the package; it can import all files of that folder by name.

    metrics: called by the web server with its `scaler.monitor.web.metrics.Metrics` and telemetry_endpoint, returns a
    coroutine, which is cancelled when the server ends.

    keeper: called with the frame of a scheduler with a state_directory, returns an object like
    `scaler.extensions.durability.steps.DurableSteps`. main: coroutine function that runs a scheduler's process, called
    with the settings, the Component, and `scaler.scheduler.server.serve`. prepare: called in a fork server before later
    tasks have clients.

    agent: called in each worker with its `scaler.worker.agent.shell.Agent`, whose lists of functions it extends.
    processor: called in each processor with its `ProcessorContext`, which also has such lists, and with a function that
    sends the agent a `Note`, or drops it if the agent is busy.

    client, async_client: classes derived from `scaler.client.task_calls.TaskCalls` and
    `scaler.extensions.async_calls.AsyncCalls`, whose methods clients and their views get. questions: a class like
    client, whose methods only clients get, and AsyncClient as coroutines. `scaler.client.extended` lists all methods.

    process: see `OwnProcess`. own: parts that Scaler takes from one built-in extension only, by name, with `part_of`.
    """

    name: str
    settings: str = ""
    scheduler: str = ""
    scaling: str = ""
    policy: str = ""
    performer: str = ""
    found: tuple[FoundTable, ...] = ()
    monitor: str = ""
    tables: str = ""
    routes: str = ""
    page: str = ""
    metrics: str = ""
    keeper: str = ""
    main: str = ""
    prepare: str = ""
    agent: str = ""
    processor: str = ""
    client: str = ""
    async_client: str = ""
    questions: str = ""
    process: OwnProcess | None = None
    own: Mapping[str, str] = field(default_factory=dict, hash=False)
    requires: tuple[str, ...] = ()


@cache
def extensions(changes: tuple[str, ...] = ()) -> tuple[Extension, ...]:
    """Return the built-in extensions with changes: `-NAME` removes one, `NAME` adds an installed one. Raises UsageError
    for an unknown name, and for an extension whose requirement is missing."""
    names = dict.fromkeys(EXTENSIONS.built_in)
    for change in changes:
        name = change.removeprefix("-")
        if EXTENSIONS.reference(name) is None:
            raise UsageError(f"no extension {name!r} is installed{nearest(name, EXTENSIONS.names())}")
        names.pop(name, None)
        if name == change:
            names[name] = None
    found = tuple(_extension(name) for name in names)
    for extension in found:
        if missing := [each for each in extension.requires if each not in names]:
            raise UsageError(f"the extension {extension.name!r} requires {missing[0]!r}")
    return found


def _extension(name: str) -> Extension:
    try:
        extension = load(EXTENSIONS.reference(name) or "")
    except Exception as error:
        raise UsageError(f"the extension {name!r} cannot be loaded: {error!r}") from error
    if not isinstance(extension, Extension) or extension.name != name:
        raise UsageError(
            f"the entry point of the extension {name!r} does not refer to a scaler.plugins.Extension with this name"
        )
    return extension


def part_of(name: str, part: str, user: str) -> Any:
    """Return a part of a built-in extension, by its name in `own`, or else by its field. user: what needs the part.
    Raises UsageError if the extension is missing."""
    if EXTENSIONS.reference(name) is None:
        raise UsageError(f"{user} needs the extension {name!r}, which is not installed")
    extension = _extension(name)
    return load(extension.own.get(part) or getattr(extension, part))


@cache
def known_extensions() -> tuple[Extension, ...]:
    """Return all installed extensions, even if unused, because monitors show their tables. Skips extensions that
    cannot be loaded, with a warning."""
    found = []
    for name in EXTENSIONS.names():
        try:
            extension = _extension(name)
            for table in extension.found:
                load(table.row)
            found.append(extension)
        except Exception as error:  # noqa: BLE001 (another package must not keep monitors from starting)
            warnings.warn(f"the tables of the extension {name!r} are not shown: {error}", stacklevel=2)
    return tuple(found)


def own_processes() -> dict[str, OwnProcess]:
    """Return the extensions' processes, by the names of their sections and arrays in a file."""
    found = [each.process for each in known_extensions() if each.process is not None]
    return {section: each for each in found for section in (each.section, *each.arrays)}


class ExtensionMethod:
    """A method that replaces itself with the extension's method on first use."""

    def __init__(self, extension: str, part: str = "client", wrapper: str = "") -> None:
        """part: the field of the extension that names the class with the method. wrapper: reference to a function that
        creates the method from the extension's method."""
        self._extension = extension
        self._part = part
        self._wrapper = wrapper

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._method()
        setattr(self._owner, self._name, method)
        return method.__get__(instance, owner)

    def _method(self) -> Any:
        try:
            method = vars(part_of(self._extension, self._part, self._name))[self._name]
        except UsageError as error:
            return _missing(str(error))
        return cast("Callable[[Any], Any]", load(self._wrapper))(method) if self._wrapper else method


def _missing(text: str) -> Callable[..., Any]:
    def missing(*_args: object, **_kwargs: object) -> None:
        raise UsageError(text)

    return missing
