"""The commands. Each turns command line, environment, and file into a component's configuration."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from scaler.config.addresses import local_address, shared_address
from scaler.config.clusters import LOCAL, LauncherConfig, local_config, scheduler_model_of
from scaler.config.flags import add_file, bare_parser, flags_parser, parse_flags
from scaler.config.load import ConfigFile, Section, Sources, read_file, resolve, variable_of
from scaler.config.monitors import TopConfig, WebUiConfig
from scaler.config.servers import ObjectStorageServerConfig, SchedulerConfig
from scaler.config.setting import SettingsModel, describe
from scaler.config.worker_managers import ClusterConfig, WorkerManagerConfig, settings_model
from scaler.errors import ConfigError, UsageError
from scaler.paths import local_path
from scaler.plugins import WORKER_MANAGERS
from scaler.plugins import load as plug_in
from scaler.registry import name_from

Verb = Literal["setup", "show", "teardown"]
VERBS: tuple[Verb, ...] = ("setup", "show", "teardown")
_COMMANDS = {
    LOCAL: "start a scheduler, workers, and a web page on this machine",
    "init": "write a commented TOML file for the given worker manager types",
    "keys": "create, list, and revoke the keys of a cluster",
    "show": "print a table: workers, tasks, failures, costs, objects, logs, and more",
    "explain": "explain why a task waits, or how it ended",
    "logs": "print a task's output, or the workers' latest warnings",
    "replay": "run the failed task of a bundle locally, optionally in a debugger",
    "sessions": "list, show, cancel, and remove durable sessions",
    "promote": "promote a standby to scheduler",
    "trace": "write a timeline of the cluster for Perfetto",
    "audit": "print the audit log: connections, refusals, submissions, cancellations",
    "objects": "list the largest objects, what created them, and where they are",
    "costs": "print the cluster's costs and spending limits",
    "profile": "print where a function or task spends its time",
    "history": "print past measurements, runs, decisions, and failures",
    "submit": "run a script on a worker, print its output, and exit with the script's code",
    "http": "serve calls, jobs, and schedules over HTTP",
}
_SECTIONS = """\
sections of the file, and the commands whose -h lists their keys:
  [object_storage_server]  scaler_object_storage_server
  [scheduler]              scaler_scheduler
  [[worker_manager]]       scaler_worker_manager TYPE
  [cluster]                scaler_cluster
  [webui]                  scaler_ui
  [http], [[schedule]]     scaler http

If a file has the name of a command, write ./NAME."""
M = TypeVar("M", bound=SettingsModel)
Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Provision:
    verb: Verb
    config: WorkerManagerConfig
    dry_run: bool


# -- one function per command, called with program, arguments, and environment; each may raise UsageError


def parse(model: type[M], purpose: str, program: str, arguments: Sequence[str], environment: Environment) -> M:
    return resolve(model, _sources(model, flags_parser(program, model, purpose), arguments, environment))


parse_object_storage_server = partial(parse, ObjectStorageServerConfig, "Run an object storage.")
parse_cluster = partial(parse, ClusterConfig, "Run a fixed set of local workers.")


def parse_scheduler(program: str, arguments: Sequence[str], environment: Environment) -> SchedulerConfig:
    path, names = _given(arguments, "-c", "--config"), _given(arguments, "--extensions")
    file = read_file(path[0]) if path else None
    table = file.tables.get(SchedulerConfig.section) if file else None
    model = scheduler_model_of(Sources({"extensions": names} if names else {}, environment, file, table))
    return parse(model, "Run a scheduler.", program, arguments, environment)


def _given(arguments: Sequence[str], *flags: str) -> list[str]:
    found: list[str] = []
    for place, text in enumerate(arguments, 1):
        flag, equals, value = text.partition("=")
        if flag in flags:
            behind = takewhile(lambda each: not each.startswith("-") and "://" not in each, arguments[place:])
            found += [value] if equals else behind
    return found


parse_webui = partial(parse, WebUiConfig, "Serve the state of a cluster as web pages, JSON, and metrics.")


def asking_sources(
    parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Environment
) -> tuple[Sources, dict[str, Any]]:
    """Return the sources of settings for TopConfig, and the command's other flags."""
    sources = _sources(TopConfig, parser, arguments, environment)
    described = describe(TopConfig)
    settings = {*described, *(alias.name for item in described.values() for alias in item.setting.aliases)}
    own = {name: sources.flags.pop(name) for name in [*sources.flags] if name not in settings}
    return sources, own


def whom_to_ask(sources: Sources) -> TopConfig:
    """Return the cluster to query. A configuration file identifies the cluster that was started with it."""
    if sources.file is not None and (table := sources.file.tables.get(SchedulerConfig.section)):
        asked = replace(sources, flags={}, table=table)
        scheduler = resolve(scheduler_model_of(asked), asked)
        sources = replace(sources, implied={"monitor_address": local_address(scheduler.monitor_address)})
    return resolve(TopConfig, sources)


def parse_worker_manager(
    program: str, arguments: Sequence[str], environment: Environment
) -> WorkerManagerConfig | Provision:
    if not arguments or arguments[0].startswith("-"):
        known = ", ".join(WORKER_MANAGERS.names())
        parser = bare_parser(program, f"Run a worker manager. {program} TYPE -h lists the settings of a type.")
        parser.usage = f"{program} TYPE [{'|'.join(VERBS)}] [-c FILE] [settings] [ADDRESS]"
        parser.epilog = f"{program} TYPE {'|'.join(VERBS)} creates, lists, or removes the cloud resources of a type."
        parser.add_argument("type", metavar="TYPE", nargs="?", help=f"one of {known}")
        parser.parse_known_args(arguments[:1])
        raise UsageError(f"give a type first: {program} TYPE ADDRESS; types: {known}")
    kind, *rest = arguments
    verb = next((verb for verb in VERBS if rest[:1] == [verb]), None)
    if verb is None:
        return _parse_manager(kind, None, f"{program} {kind}", rest, environment)
    purpose = {"setup": "Make", "show": "List", "teardown": "Remove"}.get(verb, "")
    text = f"{purpose} the cloud resources of a worker manager of type {kind}."
    parser = flags_parser(f"{program} {kind} {verb}", settings_model(kind), text)
    parser.usage = f"{parser.prog} [--dry-run] [-c FILE] [settings]"
    parser.add_argument("--dry-run", action="store_true", help="print the actions without performing them")
    sources = _sources(settings_model(kind), parser, rest[1:], environment)
    dry_run = bool(sources.flags.pop("dry_run"))
    implied = {"worker_manager_id": kind, **settings_model(kind).setup_defaults}
    return Provision(verb, _resolve_manager(kind, sources, implied), dry_run)


def _parse_manager(
    kind: str, default_id: str | None, program: str, arguments: Sequence[str], environment: Environment
) -> WorkerManagerConfig:
    parser = flags_parser(program, settings_model(kind), f"Run a worker manager of type {kind}.")
    implied = {} if default_id is None else {"worker_manager_id": default_id}
    return _resolve_manager(kind, _sources(settings_model(kind), parser, arguments, environment), implied)


parse_worker_adapter_native = partial(_parse_manager, "baremetal_native", "native_worker_adapter")
parse_worker_adapter_symphony = partial(_parse_manager, "symphony", "symphony_worker_adapter")


def _resolve_manager(kind: str, sources: Sources, implied: Mapping[str, object]) -> WorkerManagerConfig:
    table = _table_of_type(kind, sources.file, sources) if sources.file else None
    return resolve(settings_model(kind), replace(sources, table=table, implied={"type": kind, **implied}))


def parse_local(program: str, arguments: Sequence[str], environment: Environment) -> Callable[[str], LauncherConfig]:
    """Return a function that builds the configuration, given a free address for the scheduler."""
    parser = bare_parser(program, "Start a scheduler, workers, and a web page on this machine; Ctrl-C stops them.")
    for names, key, metavar, text in (
        (("-n", "--num-of-workers"), "num_of_workers", "COUNT", "number of workers [default: CPUs minus 1]"),
        (("--name",), "name", "NAME", "name for Client(NAME) and commands [default: local, or the next free local-2]"),
        (("--address",), "bind_address", "ADDRESS", "address of the scheduler [default: a free port on loopback]"),
        (("--web-port", "--port"), "web_port", "PORT", "port of the web page, or the next free one [default: 50001]"),
        (("--state-directory",), "state_directory", "PATH", "directory that preserves results [default: none]"),
    ):
        parser.add_argument(*names, dest=key, metavar=metavar, default=argparse.SUPPRESS, help=text)
    parser.epilog = (
        "Change other settings with environment variables (SCALER_SCHEDULER_<KEY>, SCALER_CLUSTER_<KEY> for workers, "
        "SCALER_WEBUI_<KEY>), or a file with scaler FILE."
    )
    flags = parse_flags(parser, arguments)
    implied = {"logging_level": "WARNING", "worker_manager_id": LOCAL}
    return partial(local_config, Sources(flags, environment, implied=implied), name=str(flags.get("name", LOCAL)))


def parse_launcher(program: str, arguments: Sequence[str], environment: Environment) -> LauncherConfig:
    parser = bare_parser(program, "Start the components in a TOML file, or a local cluster; Ctrl-C stops them.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = "".join(f"  {program} {name:<11} {text}\n" for name, text in _COMMANDS.items())
    parser.epilog = f"commands (COMMAND -h for help):\n{commands}\n{_SECTIONS}"
    add_file(parser, "the TOML file")
    parser.add_argument("positional:file", metavar="FILE", nargs="?", default=argparse.SUPPRESS, help="the TOML file")
    first = next(iter(arguments), "")
    near = get_close_matches(first, _COMMANDS, n=1)
    if near and not local_path(first).exists():
        raise UsageError(f"there is no file {first!r}; did you mean 'scaler {near[0]}'?")
    flags = parse_flags(parser, arguments)
    named = [flags[key] for key in ("config", "file") if key in flags]
    if len(named) != 1:
        raise UsageError("give one configuration file: scaler FILE, such as scaler config/local.toml")
    return launcher_config(read_file(str(named[0])), environment)


def launcher_config(file: ConfigFile, environment: Environment) -> LauncherConfig:
    tables = file.tables
    if "scheduler" not in tables:
        raise ConfigError(
            f'{file.path}: section [scheduler] is missing: add it with a bind_address, such as "tcp://127.0.0.1:8516"'
        )

    def load(model: type[M], table: Section, **implied: object) -> M:
        return resolve(model, Sources({}, environment, file, table, implied))

    storage = webui = None
    beside: dict[str, object] = {}
    model = scheduler_model_of(Sources({}, environment, file, tables["scheduler"]))
    alone = load(model, tables["scheduler"])
    security = {key: getattr(alone, key) for key in ("credentials", "insecure_no_auth", "compression")}
    if table := tables.get("object_storage_server"):
        storage = load(ObjectStorageServerConfig, table, **security)
        beside = {"object_storage_address": local_address(storage.bind_address)}
        if alone.object_storage_address is None:  # otherwise, peers use the configured address
            beside["advertised_object_storage_address"] = shared_address(storage.bind_address)
    scheduler = load(model, tables["scheduler"], **beside)
    address = local_address(scheduler.bind_address)
    managers = [
        load(settings_model(_type_in(file, table)), table, scheduler_address=address, **security)
        for table in file.worker_managers
    ]
    if table := tables.get("cluster"):
        managers.append(load(ClusterConfig, table, scheduler_address=address, **security).as_worker_manager())
    if table := tables.get("webui"):
        webui = load(WebUiConfig, table, monitor_address=local_address(scheduler.monitor_address), **security)
    processes = {
        name: load(
            cast("type[SettingsModel]", plug_in(each.settings)), tables[name], scheduler_address=address, **security
        )
        for name, each in file.processes.items()
    }
    try:
        return LauncherConfig(
            object_storage_server=storage,
            scheduler=scheduler,
            worker_managers=tuple(managers),
            webui=webui,
            processes=processes,
            name=name_from(Path(file.path).stem),
        )
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from None


def _sources(
    model: type[SettingsModel], parser: argparse.ArgumentParser, arguments: Sequence[str], environment: Environment
) -> Sources:
    flags = parse_flags(parser, arguments)
    path = flags.pop("config", None)
    file = None if path is None else read_file(str(path))
    return Sources(flags, environment, file, file.tables.get(model.section) if file else None)


def _type_in(file: ConfigFile, table: Section) -> str:
    kind = table.values.get("type")
    if not isinstance(kind, str):
        known = ", ".join(WORKER_MANAGERS.names())
        raise ConfigError(f"{file.path}, {table.title}: type is missing; types: {known}")
    return kind


def _table_of_type(kind: str, file: ConfigFile, sources: Sources) -> Section | None:
    tables = [table for table in file.worker_managers if _type_in(file, table) == kind]
    if len(tables) < 2:
        return tables[0] if tables else None
    variable = variable_of(WorkerManagerConfig, "worker_manager_id")
    wanted = sources.flags.get("worker_manager_id", sources.environment.get(variable))
    matching = [table for table in tables if table.values.get("worker_manager_id") == wanted]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(repr(table.values.get("worker_manager_id")) for table in tables)
    raise ConfigError(
        f"{file.path} has several worker managers of the type {kind}: {names}; choose one with --worker-manager-id"
    )
