"""`scaler run-again`: runs a failed task again, and prints what becomes of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from scaler.client.client import Client
from scaler.config.flags import bare_parser
from scaler.registry import find_only
from scaler.serialization import describe
from scaler.serialization.exceptions import remote_traceback
from scaler.texts import escaped_lines


def add_address(parser: argparse.ArgumentParser) -> None:
    text = "of the scheduler, or the name of a cluster [default: the only running cluster of this user]"
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help=text)


def address_of(given: str | None, environment: Mapping[str, str]) -> str:
    """Return an address: the given one, that of SCALER_ADDRESS, or that of the only cluster."""
    return given or environment.get("SCALER_ADDRESS") or find_only().address


def run_again(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print the result of a failed task that runs again, or its traceback; return the exit code."""
    parser = bare_parser(program, "Run a failed task again, and print its result or its traceback.")
    parser.add_argument("task", metavar="TASK_ID")
    add_address(parser)
    found = parser.parse_intermixed_args(arguments)
    with Client(address_of(found.address, environment)) as client:
        future = client.run_again(found.task)
        error = future.exception()
        if error is None:
            sys.stdout.write(f"{escaped_lines(repr(future.result()))}\n")
            return 0
        trace = remote_traceback(error)
        sys.stderr.write(escaped_lines(f"{describe(error) if trace is None else trace.text.strip()}\n"))
        return 1
