"""The commands: each reads its configuration and hands it to the component, which is imported only then."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scaler.component import EXIT_USAGE, note_bug, report
from scaler.errors import ScalerError

EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """parse and run name functions as `module:function`; run takes what parse returns."""

    parse: str
    run: str


COMMANDS: Mapping[str, Command] = {
    "scaler": Command("scaler.config.commands:parse_launcher", "scaler.cluster.launcher:run"),
    "scaler_object_storage_server": Command(
        "scaler.config.commands:parse_object_storage_server", "scaler.object_storage.server:run"
    ),
    "scaler_scheduler": Command("scaler.config.commands:parse_scheduler", "scaler.scheduler.server:run"),
    "scaler_worker_manager": Command("scaler.config.commands:parse_worker_manager", "scaler.worker_manager.runner:run"),
    "scaler_cluster": Command("scaler.config.commands:parse_cluster", "scaler.cluster.fixed:run"),
    "scaler_worker_adapter_native": Command(
        "scaler.config.commands:parse_worker_adapter_native", "scaler.worker_manager.runner:run"
    ),
}


def scaler() -> int:
    """Start everything that a file describes."""
    return run_command("scaler", sys.argv[1:])


def object_storage_server() -> int:
    """Run an object storage."""
    return run_command("scaler_object_storage_server", sys.argv[1:])


def scheduler() -> int:
    """Run a scheduler."""
    return run_command("scaler_scheduler", sys.argv[1:])


def worker_manager() -> int:
    """Run a worker manager of the type that is the first argument."""
    return run_command("scaler_worker_manager", sys.argv[1:])


def cluster() -> int:
    """Run a fixed set of local workers."""
    return run_command("scaler_cluster", sys.argv[1:])


def worker_adapter_native() -> int:
    """Run a worker manager of the type baremetal_native, under the command's older name."""
    return run_command("scaler_worker_adapter_native", sys.argv[1:])


def main(arguments: Sequence[str]) -> int:
    """Run the command that is the first argument, by its name with or without `scaler_`."""
    name = arguments[0] if arguments else ""
    full = name if name in COMMANDS else f"scaler_{name}"
    if full not in COMMANDS:
        sys.stderr.write(f"python -m scaler.cli: give one of the commands {', '.join(COMMANDS)}\n")
        return EXIT_USAGE
    return run_command(full, arguments[1:])


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run a command until its component ends, and return the exit code: 0, 1 for failure, 2 for usage."""
    command = COMMANDS[name]
    try:
        config = _named(command.parse)(name, arguments, os.environ)
        code = _named(command.run)(config)
    except ScalerError as error:
        return report(name, error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BaseException as error:
        note_bug(error)
        raise
    assert isinstance(code, int)
    return code


def _named(place: str) -> Callable[..., object]:
    module, _, function = place.partition(":")
    named: Callable[..., object] = getattr(importlib.import_module(module), function)
    return named
