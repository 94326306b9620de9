"""What `scaler_worker_manager` does: run a manager, or make, list or remove what it needs in its cloud.

A type that needs something there names a function `provision(config, verb, dry_run, say) -> int` in its
`WorkerManagerType`. It prints a line for each step with `say`, does nothing again that is there already, removes only
what it has made, and returns the exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, cast

from scaler import logs
from scaler.config.commands import Provision, Verb
from scaler.config.worker_managers import WorkerManagerConfig
from scaler.errors import UsageError
from scaler.plugins import load, worker_manager_type
from scaler.worker_manager import runner

Say = Callable[[str], None]


class Provisioner(Protocol):
    """The function `provision` of a type's module. Raises ScalerError."""

    def __call__(self, config: WorkerManagerConfig, verb: Verb, dry_run: bool, say: Say) -> int: ...


def run(told: WorkerManagerConfig | Provision) -> int:
    """Do what the command line says, and return the exit code."""
    if isinstance(told, WorkerManagerConfig):
        return runner.run(told)
    provision = provisioner_of(told.config.type)
    return provision(told.config, told.verb, told.dry_run, _say)


def provisioner_of(kind: str) -> Provisioner:
    """Return what sets up a type. Raises UsageError for one that needs nothing."""
    reference = worker_manager_type(kind).provision
    if not reference:
        raise UsageError(f"a worker manager of the type {kind} needs nothing in a cloud: there is nothing to set up")
    return cast("Provisioner", load(reference))


def _say(line: str) -> None:
    sys.stdout.write(f"{logs.escaped(line)}\n")
    sys.stdout.flush()
