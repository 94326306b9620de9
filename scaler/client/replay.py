"""Runs a failed task again in this process, where a debugger can inspect it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from scaler.client.again import WhatRan
from scaler.client.chunks import MapFunction
from scaler.client.graph_tasks import ChunkFunction
from scaler.ids import content_id
from scaler.serialization import load_function, load_serializer, load_value
from scaler.serialization.arguments import load_arguments
from scaler.serialization.uploaded import UploadedModules
from scaler.texts import escaped_lines
from scaler.worker.processor.calling import finish

_uploaded = UploadedModules()


def replay(ran: WhatRan, *, pdb: bool = False) -> Any:
    """Return the value of a task's function here, a list for a chunk. pdb: debug an exception, then raise it."""
    if not ran.spec.code:
        return _replayed(ran, pdb=pdb)
    code = bytes(ran.functions[-1][0])
    _uploaded.use(content_id(code), lambda: code)
    try:
        return _replayed(ran, pdb=pdb)
    finally:
        _uploaded.use(b"")  # restore the program's own modules


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


def _call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if isinstance(function, MapFunction):
        # Call items directly, because a chunk catches their exceptions, which a debugger needs where they are raised.
        calls = (function.prepare(args[0], position) for position in range(len(args[0])))
        return [finish(each(*arguments)) for each, arguments in calls]
    if isinstance(function, ChunkFunction):
        program, *inputs = args
        return function.run(program, inputs, [])
    return finish(function(*args, **kwargs))
