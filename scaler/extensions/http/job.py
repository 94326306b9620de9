"""Runs calls for the HTTP server on workers: functions by name, with encoded results, and scripts."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaler.errors import SerializationError, UsageError
from scaler.extensions.languages.by_name import find_function
from scaler.extras import require
from scaler.serialization.exceptions import ShownAsError, dump_exception, user_traceback
from scaler.worker.processor.calling import finish

JSON, MSGPACK = "application/json", "application/msgpack"
_POLL_SECONDS = 0.2


class ExitCodeError(Exception):
    """A script has failed. Its argument is its exit code, or 128 plus the number of the signal that ended it."""

    def __str__(self) -> str:
        return f"the script ended with exit code {self.args[0]}"


def invoke(
    function: str, is_listed: bool, args: Sequence[Any], kwargs: Mapping[str, Any], media: str
) -> tuple[str, bytes]:
    """Call a function by name; return the media type and the encoded result, which is empty without a media type.

    is_listed: whether the operator permits this exact name, not just the functions that its module defines. Raises
    ShownAsError, which is shown without loading the class of the function's exception.
    """
    found = find_function(function)
    home = getattr(found, "__module__", None)
    if not is_listed and home != function.partition(":")[0]:
        raise UsageError(f"{function} is defined in {home}: to permit it, add this name to `allowed`")
    try:
        value = finish(found(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 (raised by the function; SystemExit would end the server)
        failed = ShownAsError()
        failed.shown = dump_exception(error, user_traceback(error))
        raise failed from None
    try:
        return media, encode(value, media) if media else b""
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kinds = "None, bool, int, float, str, list, dict, and with MessagePack also bytes"
        text = f"the result ({type(value).__name__}) cannot be encoded as {media}: {error}; return {kinds}"
        raise SerializationError(text) from None


def encode(value: object, media: str) -> bytes:
    if media == JSON:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    require("msgpack", MSGPACK)
    import msgpack  # noqa: PLC0415 (optional)

    packed: bytes = msgpack.packb(value)
    return packed


def run_script(name: str, source: bytes, arguments: Sequence[str]) -> Iterator[tuple[bool, bytes]]:
    """Run a script with this worker's Python and modules. Yields (is_stderr, output) pairs. Raises ExitCodeError.

    The script runs in the process group of the worker's process, which is killed when the task is cancelled.
    """
    folder = tempfile.mkdtemp(prefix="scaler-job-")
    # The child removes the folder even if this process is killed.
    cleaner = subprocess.Popen(
        ["/bin/sh", "-c", 'read _; rm -rf "$0"', folder], stdin=subprocess.PIPE, start_new_session=True
    )
    more = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    output: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        script = Path(folder, name)
        script.write_bytes(source)
        process = subprocess.Popen([sys.executable, str(script), *arguments], env=os.environ | more, **output)
        try:
            yield from _output_of(process)
        finally:
            process.kill()
            code = process.wait()
    finally:
        cleaner.communicate()
    if code:
        raise ExitCodeError(code if code > 0 else 128 - code)


def _output_of(process: subprocess.Popen[bytes]) -> Iterator[tuple[bool, bytes]]:
    with selectors.DefaultSelector() as selector:
        for is_stderr, pipe in enumerate((process.stdout, process.stderr)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, bool(is_stderr))
        while selector.get_map():
            has_ended = process.poll() is not None
            readable = selector.select(0 if has_ended else _POLL_SECONDS)
            if has_ended and not readable:
                return  # a background process of the script still has the pipes open
            for key, _ in readable:
                if data := os.read(key.fd, 64 * 1024):
                    yield key.data, data
                else:
                    selector.unregister(key.fileobj)
    process.wait()
