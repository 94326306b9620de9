"""The commands. `run_command` imports each command, so that Ctrl-C during an import exits without a traceback."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence

EXIT_INTERRUPTED = 130

_PARSE = "scaler.config.commands:parse_"
_LAUNCHER = "scaler.cluster.launcher:run"
_MANAGER = "scaler.worker_manager.main:run"
_WEB = "scaler.monitor.web.server:run"
_SHOW = "scaler.monitor.commands:"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "scaler": (f"{_PARSE}launcher", _LAUNCHER),
    "scaler_object_storage_server": (f"{_PARSE}object_storage_server", "scaler.object_storage.server:run"),
    "scaler_scheduler": (f"{_PARSE}scheduler", "scaler.scheduler.server:run"),
    "scaler_worker_manager": (f"{_PARSE}worker_manager", _MANAGER),
    "scaler_cluster": (f"{_PARSE}cluster", _MANAGER),
    "scaler_worker_adapter_native": (f"{_PARSE}worker_adapter_native", _MANAGER),
    "scaler_worker_adapter_symphony": (f"{_PARSE}worker_adapter_symphony", _MANAGER),
    "scaler_ui": (f"{_PARSE}webui", _WEB),
    "scaler_gui": (f"{_PARSE}webui", _WEB),
    "scaler_top": (f"{_SHOW}top",),
}
SUBCOMMANDS: Mapping[str, tuple[str, ...]] = {
    "scaler local": (f"{_PARSE}local", _LAUNCHER),
    "scaler init": ("scaler.config.init:init",),
    "scaler keys": ("scaler.security.commands:keys",),
    "scaler show": (f"{_SHOW}show",),
    "scaler explain": (f"{_SHOW}explain",),
    "scaler logs": (f"{_SHOW}logs",),
    "scaler replay": ("scaler.extensions.failures.bundle:replay_bundle",),
    "scaler sessions": ("scaler.extensions.durability.command:sessions",),
    "scaler promote": ("scaler.extensions.standby.command:promote",),
    "scaler trace": ("scaler.extensions.timeline.command:trace_file",),
    "scaler audit": (f"{_SHOW}show_alias",),
    "scaler objects": (f"{_SHOW}show_alias",),
    "scaler costs": (f"{_SHOW}show_alias",),
    "scaler profile": (f"{_SHOW}profile",),
    "scaler http": ("scaler.extensions.http.command:http",),
    "scaler submit": ("scaler.extensions.http.command:submit",),
    "scaler history": ("scaler.extensions.history.command:history",),
}

COMMANDS_AND_SUBCOMMANDS = {**COMMANDS, **SUBCOMMANDS}
"""For each command, one or two `module:function` references. The first function takes the program, arguments, and
environment, and the second takes the result. The last function returns the exit code."""


def _script(name: str) -> Callable[[], int]:
    return lambda: run_command(name, sys.argv[1:])


scaler = _script("scaler")
object_storage_server = _script("scaler_object_storage_server")
scheduler = _script("scaler_scheduler")
worker_manager = _script("scaler_worker_manager")
cluster = _script("scaler_cluster")
worker_adapter_native = _script("scaler_worker_adapter_native")
worker_adapter_symphony = _script("scaler_worker_adapter_symphony")
ui = _script("scaler_ui")
gui = _script("scaler_gui")
top = _script("scaler_top")


def main(arguments: Sequence[str]) -> int:
    """Run the command named by the first argument, with or without `scaler_`."""
    name = arguments[0] if arguments else ""
    full = name if name in COMMANDS else f"scaler_{name}"
    if full in COMMANDS:
        return run_command(full, arguments[1:])
    if name in ("-h", "--help"):
        sys.stdout.write(f"usage: python -m scaler.cli COMMAND ...; see COMMAND -h; commands: {', '.join(COMMANDS)}\n")
        return 0
    from scaler.component import EXIT_USAGE  # noqa: PLC0415 (see the head of this module)
    from scaler.errors import nearest  # noqa: PLC0415

    known = list(COMMANDS)
    what = f"unknown command {name!r}{nearest(full, known)}" if name else f"give one of the commands {', '.join(known)}"
    sys.stderr.write(f"python -m scaler.cli: {what}\n")
    return EXIT_USAGE


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run a command until its component ends. Return the exit code: 0, 1 for failure, 2 for usage errors."""
    try:
        return _run(name, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        # During class creation, which is common in imports, Python 3.11 wraps KeyboardInterrupt in another exception.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        raise


def _run(name: str, arguments: Sequence[str]) -> int:
    from scaler.component import note_bug, report  # noqa: PLC0415 (see the head of this module)
    from scaler.errors import ScalerError  # noqa: PLC0415

    if name == "scaler" and not arguments:
        arguments = ("local",)
    if arguments and f"{name} {arguments[0]}" in SUBCOMMANDS:
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
    first, *others = COMMANDS_AND_SUBCOMMANDS[name]
    try:
        code = _named(first)(name, arguments, os.environ)
        for function in others:
            code = _named(function)(code)
    except ScalerError as error:
        return report(name, error)
    except BaseException as error:
        note_bug(error)
        raise
    assert isinstance(code, int)
    return code


def _named(reference: str) -> Callable[..., object]:
    module, _, function = reference.partition(":")
    named: Callable[..., object] = getattr(importlib.import_module(module), function)
    return named
