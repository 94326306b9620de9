"""`scaler http` and `scaler submit`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from scaler.client.client import Client
from scaler.config.commands import parse
from scaler.config.flags import bare_parser
from scaler.errors import UsageError
from scaler.extensions.http.job import ExitCodeError, run_script
from scaler.extensions.http.keys import token_of
from scaler.extensions.http.server import run
from scaler.extensions.http.settings import TOKEN_FILE, HttpConfig
from scaler.monitor.web.page import load_token
from scaler.registry import find_only
from scaler.security import CREDENTIALS_VARIABLE
from scaler.security.credential import load_credential

EXIT_CANCELLED, EXIT_PIPE_CLOSED = 1, 141


def http(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the HTTP server, or with `token`, print a token. Returns the exit code. Raises UsageError."""
    if arguments[:1] == ["token"]:
        parser = bare_parser(f"{program} token", "Print the token of a client's credential, or of this user's server.")
        parser.add_argument("credential", metavar="FILE", nargs="?", help="a file from scaler keys add --role client")
        path = parser.parse_args(arguments[1:]).credential
        sys.stdout.write(f"{token_of(load_credential(path)) if path else load_token(None, own=TOKEN_FILE)[0]}\n")
        return 0
    return run(parse(HttpConfig, "Serve calls, jobs, and schedules over HTTP.", program, arguments, environment))


def submit(program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a script on a worker; print its output, and return its exit code. Raises UsageError and `Client`'s errors."""
    parser = bare_parser(program, "Run a script on a worker, print its output, and exit with its exit code.")
    text = "scheduler address, or name of a cluster [default: this user's only running cluster]"
    parser.add_argument("--address", metavar="ADDRESS", help=text)
    text = f"this client's credential file [default: {CREDENTIALS_VARIABLE}, or none on the scheduler's machine]"
    parser.add_argument("--credentials", metavar="FILE", help=text)
    parser.add_argument("--memory", metavar="SIZE", help="memory to reserve on the worker, such as 8GB")
    for option, text in (("cpus", "number of the worker's slots to reserve"), ("gpu", "number of GPUs to reserve")):
        parser.add_argument(f"--{option}", type=float, metavar="COUNT", help=text)
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or - for standard input")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="argument of the script")
    given = parser.parse_args(arguments)
    try:
        source = sys.stdin.buffer.read() if given.script == "-" else Path(given.script).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the script {given.script}: {error.strerror}") from None
    name = Path(given.script).name if given.script != "-" else "stdin.py"
    options: dict[str, Any] = {key: getattr(given, key) for key in ("memory", "cpus", "gpu")}
    address = given.address or environment.get("SCALER_ADDRESS") or find_only().address
    client = Client(address, credentials=given.credentials)
    try:
        with client.stream(run_script, name, source, given.arguments, name=name, **options) as output:
            for is_stderr, data in output:
                stream = (sys.stderr if is_stderr else sys.stdout).buffer
                stream.write(data)
                stream.flush()
    except ExitCodeError as error:
        return int(error.args[0])
    except CancelledError:
        sys.stderr.write(f"{program}: {name} was cancelled\n")
        return EXIT_CANCELLED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout at exit
        return EXIT_PIPE_CLOSED
    finally:
        client.disconnect()
    return 0
