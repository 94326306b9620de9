"""Interpreter settings for tasks: options of the program that starts a cluster, and one hash seed per cluster."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Never

HASH_SEED_VARIABLE = "PYTHONHASHSEED"
HASH_SEED = "6640"  # makes `hash("text")` equal on all workers; Dask's value
OPTIONS_VARIABLE = "SCALER_INTERPRETER_OPTIONS"  # the starting program's options for its tasks, one per line
ENVIRONMENT_VARIABLE = "SCALER_ENVIRONMENT"  # path of the packed requirements, in processors with an environment
_SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
_NOISY = frozenset({"importtime", "showrefcount"})  # `-X` options that would clutter task output


def own_hash_seed() -> str:
    """Return the hash seed for workers that this process starts. The operator can set it with PYTHONHASHSEED."""
    return os.environ.get(HASH_SEED_VARIABLE) or HASH_SEED


def worker_command(module: str, environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """Return the command of a local process that runs tasks. -P keeps the working directory off the path, so that no
    file there shadows a Scaler module."""
    return [sys.executable, *environment.get(OPTIONS_VARIABLE, "").splitlines(), "-P", "-m", module]


def import_from_working_directory() -> None:
    """Add the working directory to sys.path after Scaler's import, so that a local `scaler.py` cannot replace it."""
    if (
        sys.flags.safe_path and _SAFE_PATH_VARIABLE not in os.environ
    ):  # the variable is set, so the operator has chosen this
        with contextlib.suppress(FileNotFoundError):
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 (as the interpreter does it)


def options_for_tasks() -> dict[str, str]:
    """Return the variables that pass this program's options to a component."""
    flags = sys.flags
    options = ["-" + "O" * flags.optimize] if flags.optimize else []
    options += ["-" + "b" * flags.bytes_warning] if flags.bytes_warning else []
    options += ["-B"] if flags.dont_write_bytecode else []
    options += ["-s"] if flags.no_user_site else []
    implied = {"default"} if flags.dev_mode else set()
    implied |= {"error::BytesWarning", "default::BytesWarning"} if flags.bytes_warning else set()
    options += [f"-W{each}" for each in sys.warnoptions if each not in implied and "\n" not in each]
    values = {"dev": True} if flags.dev_mode else {}
    for name, value in {**values, **sys._xoptions}.items():  # noqa: SLF001 (CPython documents it)
        if name not in _NOISY:
            options += ["-X", name if value is True else f"{name}={value}"]
    variables = {OPTIONS_VARIABLE: "\n".join(options)}
    if flags.safe_path:
        variables[_SAFE_PATH_VARIABLE] = "1"
    return variables


def inherited_environment() -> dict[str, str]:
    """Return the environment for child processes, without Python's variables under -E and -I. -E itself cannot be
    passed on, because an interpreter that ignores its environment has its own hash seed and paths."""
    if not sys.flags.ignore_environment:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def restart(variables: Mapping[str, str]) -> Never:
    """Run this program again in this process with added variables. Does not return."""
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **variables})  # noqa: S606
