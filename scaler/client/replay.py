"""Runs in this process what a failed task ran on a worker, so that a debugger can look at it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CoroutineType
from typing import Any

from scaler.client.again import WhatRan
from scaler.client.bundle import read_bundle
from scaler.client.chunks import MapFunction
from scaler.client.graph_tasks import ChunkFunction
from scaler.config.flags import bare_parser
from scaler.ids import content_id
from scaler.serialization import load_function, load_serializer, load_value
from scaler.serialization.arguments import load_arguments
from scaler.serialization.tracebacks import user_traceback
from scaler.serialization.uploaded import UploadedModules
from scaler.texts import escaped_lines

_uploaded = UploadedModules()


def replay(ran: WhatRan, *, pdb: bool = False) -> Any:
    """Return what a task's function returns here, a list for a chunk. pdb: debug an exception, then raise it."""
    if not ran.spec.code:
        return _replayed(ran, pdb=pdb)
    code = bytes(ran.functions[-1][0])
    _uploaded.use(content_id(code), lambda: code)
    try:
        return _replayed(ran, pdb=pdb)
    finally:
        _uploaded.use(b"")  # the program has its own modules again


def _replayed(ran: WhatRan, *, pdb: bool) -> Any:
    serializer = load_serializer(ran.functions[1]) if ran.spec.serializer else None
    function = load_function(ran.functions[0], serializer)

    def value(index: int) -> Any:
        return load_value(ran.inputs[index], serializer, f"input {index}")

    args, kwargs = load_arguments(ran.arguments, value, serializer)
    try:
        return _call(function, args, kwargs)
    except BaseException as error:
        if pdb:
            import pdb as debugger  # noqa: PLC0415 (few replays ask for it)

            sys.stderr.write(f"{type(error).__name__}: {escaped_lines(str(error))}\n")
            debugger.post_mortem(error.__traceback__)
        raise


def main(program: str, arguments: Sequence[str], _environment: Mapping[str, str]) -> int:
    """Print the result of the task in a bundle, or its traceback; return the exit code."""
    purpose = (
        "Run the failed task of a bundle here, and print its result or its traceback. It runs the code in the file:"
    )
    parser = bare_parser(program, f"{purpose} only replay bundles from people whose programs you would run.")
    parser.add_argument("bundle", metavar="BUNDLE", help="the file that client.bundle() wrote")
    parser.add_argument("--pdb", action="store_true", help="open the debugger where the task raises its exception")
    given = parser.parse_args(arguments)
    ran, warning = read_bundle(given.bundle)
    if warning:
        sys.stderr.write(f"scaler replay: {warning}\n")
    try:
        value = replay(ran, pdb=given.pdb)
    except Exception as error:  # noqa: BLE001 (whatever the task raises is what the user wants to see)
        sys.stderr.write(escaped_lines(f"{user_traceback(error).strip()}\n"))
        return 1
    sys.stdout.write(f"{escaped_lines(repr(value))}\n")
    return 0


def _call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if isinstance(function, MapFunction):
        # A chunk keeps the exceptions of its items, and a debugger wants them where they are raised, as below.
        return [_finish(each(*arguments)) for each, arguments in function.calls(args[0])]
    if isinstance(function, ChunkFunction):
        program, *inputs = args
        return function.run(program, inputs, [])
    return _finish(function(*args, **kwargs))


def _finish(value: Any) -> Any:
    return asyncio.run(value) if type(value) is CoroutineType else value
