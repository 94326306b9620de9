"""The commands: each reads its configuration and hands it to the component, which is imported only then.

Almost everything is imported inside `run_command`, where a Ctrl-C is already an end and not a traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence

EXIT_INTERRUPTED = 130

COMMANDS: Mapping[str, tuple[str, str]] = {
    "scaler": ("scaler.config.commands:parse_launcher", "scaler.cluster.launcher:run"),
    "scaler_object_storage_server": (
        "scaler.config.commands:parse_object_storage_server",
        "scaler.object_storage.server:run",
    ),
    "scaler_scheduler": ("scaler.config.commands:parse_scheduler", "scaler.scheduler.server:run"),
    "scaler_worker_manager": ("scaler.config.commands:parse_worker_manager", "scaler.worker_manager.runner:run"),
    "scaler_cluster": ("scaler.config.commands:parse_cluster", "scaler.worker_manager.runner:run"),
    "scaler_worker_adapter_native": (
        "scaler.config.commands:parse_worker_adapter_native",
        "scaler.worker_manager.runner:run",
    ),
    "scaler_worker_adapter_symphony": (
        "scaler.config.commands:parse_worker_adapter_symphony",
        "scaler.worker_manager.runner:run",
    ),
    "scaler_ui": ("scaler.config.commands:parse_webui", "scaler.monitor.web.server:run"),
    "scaler_gui": ("scaler.config.commands:parse_webui", "scaler.monitor.web.server:run"),
    "scaler_top": ("scaler.config.commands:parse_top", "scaler.monitor.top.command:run"),
}
SUBCOMMANDS: Mapping[str, tuple[str, str]] = {
    f"scaler {verb}": ("scaler.config.commands:parse_question", "scaler.monitor.questions:run")
    for verb in ("explain", "logs", "trace")
}
"""What `scaler` does instead of starting a file, when its first argument is one of these words."""

COMMANDS_AND_SUBCOMMANDS = {**COMMANDS, **SUBCOMMANDS}
"""For each command two functions as `module:function`: one that parses, and one that runs what that returns."""


def scaler() -> int:
    """Start everything that a file describes, or ask a scheduler that runs."""
    return run_command("scaler", sys.argv[1:])


def object_storage_server() -> int:
    """Run an object storage."""
    return run_command("scaler_object_storage_server", sys.argv[1:])


def scheduler() -> int:
    """Run a scheduler."""
    return run_command("scaler_scheduler", sys.argv[1:])


def worker_manager() -> int:
    """Run a worker manager of the type that is the first argument, or set up what it needs in its cloud."""
    return run_command("scaler_worker_manager", sys.argv[1:])


def cluster() -> int:
    """Run a fixed set of local workers."""
    return run_command("scaler_cluster", sys.argv[1:])


def worker_adapter_native() -> int:
    """Run a worker manager of the type baremetal_native, under the command's older name."""
    return run_command("scaler_worker_adapter_native", sys.argv[1:])


def worker_adapter_symphony() -> int:
    """Run a worker manager of the type symphony, under the command's older name."""
    return run_command("scaler_worker_adapter_symphony", sys.argv[1:])


def ui() -> int:
    """Run the web server of monitors."""
    return run_command("scaler_ui", sys.argv[1:])


def gui() -> int:
    """Run the web server of monitors, under the command's other name."""
    return run_command("scaler_gui", sys.argv[1:])


def top() -> int:
    """Show a cluster in a terminal."""
    return run_command("scaler_top", sys.argv[1:])


def main(arguments: Sequence[str]) -> int:
    """Run the command that is the first argument, by its name with or without `scaler_`."""
    name = arguments[0] if arguments else ""
    full = name if name in COMMANDS else f"scaler_{name}"
    if full in COMMANDS:
        return run_command(full, arguments[1:])
    if name in ("-h", "--help"):
        sys.stdout.write(f"usage: python -m scaler.cli COMMAND ...; COMMAND -h explains one of {', '.join(COMMANDS)}\n")
        return 0
    from scaler.component import EXIT_USAGE  # noqa: PLC0415 (see the head of this module)
    from scaler.errors import nearest  # noqa: PLC0415

    known = list(COMMANDS)
    what = f"unknown command {name!r}{nearest(full, known)}" if name else f"give one of the commands {', '.join(known)}"
    sys.stderr.write(f"python -m scaler.cli: {what}\n")
    return EXIT_USAGE


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run a command until its component ends, and return the exit code: 0, 1 for failure, 2 for usage."""
    try:
        return _run(name, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        # Of a Ctrl-C while a class is made, which importing does much, Python 3.11 makes another error.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        raise


def _run(name: str, arguments: Sequence[str]) -> int:
    from scaler.component import note_bug, report  # noqa: PLC0415 (see the head of this module)
    from scaler.errors import ScalerError  # noqa: PLC0415

    if arguments and f"{name} {arguments[0]}" in SUBCOMMANDS:
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
    parse, run = COMMANDS_AND_SUBCOMMANDS[name]
    try:
        config = _named(parse)(name, arguments, os.environ)
        code = _named(run)(config)
    except ScalerError as error:
        return report(name, error)
    except BaseException as error:
        note_bug(error)
        raise
    assert isinstance(code, int)
    return code


def _named(place: str) -> Callable[..., object]:
    module, _, function = place.partition(":")
    named: Callable[..., object] = getattr(importlib.import_module(module), function)
    return named
