"""What each command is told: from its command line, the environment and a file to the component's configuration."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import ValidationError

from scaler.config.addresses import local_address
from scaler.config.files import (
    BAREMETAL_NATIVE,
    CLUSTER,
    NATIVE_WORKER_ADAPTER,
    OBJECT_STORAGE_SERVER,
    SCHEDULER,
    SYMPHONY,
    SYMPHONY_WORKER_ADAPTER,
    TOP,
    WEBUI,
    WORKER_MANAGER,
    ConfigFile,
    Section,
    read_file,
)
from scaler.config.flags import CommandLine, add_file, bare_parser, flags_parser, parse_flags
from scaler.config.launcher import LauncherConfig
from scaler.config.load import Sources, reason_of, resolve, variable_of
from scaler.config.questions import Verb as Question
from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig
from scaler.config.setting import SettingsModel
from scaler.config.top import TopConfig, TopForm, TopRequest
from scaler.config.webui import WebUiConfig
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig, settings_model
from scaler.errors import ConfigError, UsageError
from scaler.plugins import WORKER_MANAGERS

Verb = Literal["setup", "show", "teardown"]
VERBS: tuple[Verb, ...] = get_args(Verb)
M = TypeVar("M", bound=SettingsModel)
Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Provision:
    """What `scaler_worker_manager TYPE VERB` is told: to make, list or remove what a manager needs in its cloud."""

    verb: Verb
    config: WorkerManagerConfig
    dry_run: bool
    """Say what would be done, and do nothing."""


def parse_object_storage_server(
    program: str, arguments: Sequence[str], environment: Environment
) -> ObjectStorageServerConfig:
    """Return what `scaler_object_storage_server` is told. Raises UsageError, like all functions here."""
    parser = flags_parser(program, OBJECT_STORAGE_SERVER, ObjectStorageServerConfig, "Run an object storage.")
    line = parse_flags(parser, arguments)
    file = _file_of(line)
    table = file.object_storage_server if file else None
    return resolve(ObjectStorageServerConfig, _sources(OBJECT_STORAGE_SERVER, line, environment, table))


def parse_scheduler(program: str, arguments: Sequence[str], environment: Environment) -> SchedulerConfig:
    """Return what `scaler_scheduler` is told."""
    line = parse_flags(flags_parser(program, SCHEDULER, SchedulerConfig, "Run a scheduler."), arguments)
    file = _file_of(line)
    return resolve(SchedulerConfig, _sources(SCHEDULER, line, environment, file.scheduler if file else None))


def parse_cluster(program: str, arguments: Sequence[str], environment: Environment) -> ClusterConfig:
    """Return what `scaler_cluster` is told."""
    line = parse_flags(flags_parser(program, CLUSTER, ClusterConfig, "Run a fixed set of local workers."), arguments)
    file = _file_of(line)
    return resolve(ClusterConfig, _sources(CLUSTER, line, environment, file.cluster if file else None))


def parse_webui(program: str, arguments: Sequence[str], environment: Environment) -> WebUiConfig:
    """Return what `scaler_ui` is told."""
    purpose = "Serve what goes on in a cluster as web pages, JSON and metrics."
    line = parse_flags(flags_parser(program, WEBUI, WebUiConfig, purpose), arguments)
    file = _file_of(line)
    return resolve(WebUiConfig, _sources(WEBUI, line, environment, file.webui if file else None))


def parse_top(program: str, arguments: Sequence[str], environment: Environment) -> TopRequest:
    """Return what `scaler_top` is told."""
    parser = flags_parser(program, TOP, TopConfig, "Show what goes on in a cluster, in a terminal.")
    parser.usage = f"{program} [--once | --json] [-c FILE] [settings] [ADDRESS]"
    options: dict[str, Any] = {"action": "store_true", "default": argparse.SUPPRESS}
    parser.add_argument("--once", **options, help="print what it would show as plain text, and end")
    parser.add_argument("--json", **options, help="print the same as one JSON document, and end")
    line = parse_flags(parser, arguments)
    once, as_json = line.flags.pop("once", False), line.flags.pop("json", False)
    form: TopForm = "json" if as_json else "once" if once else "screen"
    file = _file_of(line)
    return TopRequest(resolve(TopConfig, _sources(TOP, line, environment, file.top if file else None)), form)


def parse_worker_manager(
    program: str, arguments: Sequence[str], environment: Environment
) -> WorkerManagerConfig | Provision:
    """Return what `scaler_worker_manager TYPE` is told."""
    if not arguments or arguments[0].startswith("-"):
        parser = bare_parser(program, f"Run a worker manager. {program} TYPE -h lists the settings of a type.")
        parser.usage = f"{program} TYPE [{'|'.join(VERBS)}] [-c FILE] [settings] [ADDRESS]"
        parser.epilog = f"{program} TYPE {'|'.join(VERBS)} makes, lists or removes what a type needs in its cloud."
        parser.add_argument("type", metavar="TYPE", nargs="?", help=f"one of {', '.join(WORKER_MANAGERS.names())}")
        parser.parse_known_args(arguments[:1])
        raise UsageError(f"give the type first: {program} TYPE ADDRESS; types are {', '.join(WORKER_MANAGERS.names())}")
    kind = arguments[0]
    for verb in VERBS:
        if list(arguments[1:2]) == [verb]:
            return _parse_provision(verb, kind, f"{program} {kind} {verb}", arguments[2:], environment)
    return _parse_worker_manager_of(kind, f"{program} {kind}", arguments[1:], environment)


def parse_worker_adapter_native(
    program: str, arguments: Sequence[str], environment: Environment
) -> WorkerManagerConfig:
    """Return what `scaler_worker_adapter_native` is told: its type goes without saying, and so may its name."""
    implied = {"worker_manager_id": NATIVE_WORKER_ADAPTER}
    return _parse_worker_manager_of(BAREMETAL_NATIVE, program, arguments, environment, implied)


def parse_worker_adapter_symphony(
    program: str, arguments: Sequence[str], environment: Environment
) -> WorkerManagerConfig:
    """Return what `scaler_worker_adapter_symphony` is told, in the same way."""
    implied = {"worker_manager_id": SYMPHONY_WORKER_ADAPTER}
    return _parse_worker_manager_of(SYMPHONY, program, arguments, environment, implied)


def _parse_worker_manager_of(
    kind: str,
    program: str,
    arguments: Sequence[str],
    environment: Environment,
    implied: Mapping[str, object] | None = None,
) -> WorkerManagerConfig:
    model = settings_model(kind)
    parser = flags_parser(program, WORKER_MANAGER, model, f"Run a worker manager of the type {kind}.")
    line = parse_flags(parser, arguments)
    return _resolve_worker_manager(kind, line, environment, implied or {})


def _parse_provision(
    verb: Verb, kind: str, program: str, arguments: Sequence[str], environment: Environment
) -> Provision:
    model = settings_model(kind)
    purpose = {"setup": "Make", "show": "List", "teardown": "Remove"}[verb]
    parser = flags_parser(
        program, WORKER_MANAGER, model, f"{purpose} what a worker manager of the type {kind} needs in its cloud."
    )
    parser.usage = f"{program} [--dry-run] [-c FILE] [settings]"
    parser.add_argument(
        "--dry-run", action="store_true", default=argparse.SUPPRESS, help="say what would be done, and do nothing"
    )
    line = parse_flags(parser, arguments)
    dry_run = bool(line.flags.pop("dry_run", False))
    config = _resolve_worker_manager(kind, line, environment, {"worker_manager_id": kind, **model.setup_defaults})
    return Provision(verb, config, dry_run)


def _resolve_worker_manager(
    kind: str, line: CommandLine, environment: Environment, implied: Mapping[str, object]
) -> WorkerManagerConfig:
    file = _file_of(line)
    table = _table_of_type(kind, file, line, environment) if file else None
    sources = _sources(WORKER_MANAGER, line, environment, table)
    return resolve(settings_model(kind), replace(sources, implied={"type": kind, **implied}))


def parse_launcher(program: str, arguments: Sequence[str], environment: Environment) -> LauncherConfig:
    """Return what `scaler FILE` starts."""
    parser = bare_parser(program, "Start everything that a TOML file describes, and stop it on Ctrl-C.")
    parser.epilog = (
        "The file has the sections [object_storage_server], [scheduler], [[worker_manager]], [cluster] and [webui]; "
        "scaler_object_storage_server -h, scaler_scheduler -h, scaler_worker_manager TYPE -h, scaler_cluster -h and "
        "scaler_ui -h list their keys. scaler explain, scaler logs and scaler trace ask a cluster that runs about a "
        "task or for its timeline, and have a -h of their own; ./explain is a file of that name."
    )
    add_file(parser, "the TOML file")
    parser.add_argument("positional:file", metavar="FILE", nargs="?", default=argparse.SUPPRESS, help="the TOML file")
    first = next(iter(arguments), "")
    near = get_close_matches(first, get_args(Question), n=1)
    if near and not Path(first).exists():
        raise UsageError(f"there is no file {first!r}; did you mean 'scaler {near[0]}'?")
    line = parse_flags(parser, arguments)
    named = [text for text in (line.file, line.flags.get("file")) if text is not None]
    if len(named) != 1:
        raise UsageError("give one configuration file: scaler FILE, such as scaler config/local.toml")
    return launcher_config(read_file(str(named[0])), environment)


def launcher_config(file: ConfigFile, environment: Environment) -> LauncherConfig:
    """Return the components of a whole file, with the addresses by which they find each other filled in."""
    if file.scheduler is None:
        raise ConfigError(
            f"{file.path}: section [{SCHEDULER}] is missing: everything else needs a scheduler; "
            'write it with its bind_address, such as "tcp://127.0.0.1:8516"'
        )

    def load(model: type[M], section: str, table: Section, implied: Mapping[str, object]) -> M:
        sources = Sources(section, environment=environment, file=file.path, table=table, implied=implied)
        return resolve(model, sources)

    storage = None
    beside: dict[str, object] = {}
    if file.object_storage_server is not None:
        storage = load(ObjectStorageServerConfig, OBJECT_STORAGE_SERVER, file.object_storage_server, {})
        beside = {"object_storage_address": local_address(storage.bind_address)}
    scheduler = load(SchedulerConfig, SCHEDULER, file.scheduler, beside)
    here = {"scheduler_address": local_address(scheduler.bind_address)}
    managers = [
        load(settings_model(_type_in(file, table)), WORKER_MANAGER, table, here) for table in file.worker_managers
    ]
    if file.cluster is not None:
        managers.append(load(ClusterConfig, CLUSTER, file.cluster, here).as_worker_manager())
    webui = None
    if file.webui is not None:
        watched = {"monitor_address": local_address(scheduler.monitor_address)}
        webui = load(WebUiConfig, WEBUI, file.webui, watched)
    try:
        return LauncherConfig(
            object_storage_server=storage, scheduler=scheduler, worker_managers=tuple(managers), webui=webui
        )
    except ValidationError as error:
        raise ConfigError(f"{file.path}: {reason_of(error)}") from None


def _file_of(line: CommandLine) -> ConfigFile | None:
    return None if line.file is None else read_file(line.file)


def _sources(section: str, line: CommandLine, environment: Environment, table: Section | None) -> Sources:
    return Sources(section, flags=line.flags, environment=environment, file=line.file or "", table=table)


def _type_in(file: ConfigFile, table: Section) -> str:
    kind = table.values.get("type")
    if not isinstance(kind, str):
        known = ", ".join(WORKER_MANAGERS.names())
        raise ConfigError(f"{file.path}, {table.title}: type is missing; types are {known}")
    return kind


def _table_of_type(kind: str, file: ConfigFile, line: CommandLine, environment: Environment) -> Section | None:
    tables = [table for table in file.worker_managers if _type_in(file, table) == kind]
    if len(tables) < 2:
        return tables[0] if tables else None
    wanted = line.flags.get("worker_manager_id", environment.get(variable_of(WORKER_MANAGER, "worker_manager_id")))
    matching = [table for table in tables if table.values.get("worker_manager_id") == wanted]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(repr(table.values.get("worker_manager_id")) for table in tables)
    raise ConfigError(
        f"{file.path} has {len(tables)} worker managers of the type {kind}: {names}; "
        "choose one by its worker_manager_id with --worker-manager-id"
    )
