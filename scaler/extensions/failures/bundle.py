"""A failed task as one ZIP archive, readable without Scaler, and its replay in this process for debugging.

All files except the manifest and texts are pickles, which run code when loaded, so only `scaler replay` loads them.
"""

from __future__ import annotations

import json
import platform
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, cast

from scaler._version import __version__
from scaler.client.future import ScalerFuture, check_future
from scaler.client.loop import ClientLoop
from scaler.client.task_calls import TaskCalls, hiding_frames_of_methods
from scaler.config.flags import bare_parser
from scaler.errors import ObjectLostError, ProtocolError, UsageError
from scaler.ids import content_id, show, task_id_of
from scaler.monitor.messages import Explain, Explained, FailedTask, ReadFailure, ReadLog, TaskLog
from scaler.paths import local_path
from scaler.protocol import messages as m
from scaler.serialization import (
    ManyCallsFunction,
    Parts,
    describe,
    load_function,
    load_serializer,
    load_value,
    parts_of,
    to_payload,
)
from scaler.serialization.arguments import load_arguments
from scaler.serialization.exceptions import remote_traceback, user_traceback
from scaler.texts import escaped_lines
from scaler.worker.processor.calling import finish
from scaler.worker.processor.functions import Uploads

FORMAT = 1
_MANIFEST = "manifest.json"
_ARGUMENTS = "arguments.bin"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024


class WhatRan(NamedTuple):
    spec: m.Spec
    functions: list[Parts]
    arguments: Parts
    inputs: list[Parts]


def what_ran(loop: ClientLoop, task: bytes, verb: str) -> WhatRan:
    """Return the function and values of a failed task. verb: for errors. Raises UsageError and ObjectLostError."""
    found = loop.ask(ReadFailure(task), FailedTask)
    cannot = f"task {show(task)} cannot {verb}"
    if not found.runs:
        raise UsageError(f"{cannot}: {found.text}")

    def parts(payload: bytes, what: str) -> Parts:
        if not m.is_stored(payload):
            return [*parts_of(payload)]
        try:
            return loop.transfers.fetch(payload[1:17])
        except ObjectLostError as error:
            raise ObjectLostError(
                f"{cannot}: {what} is gone: its client disconnected or released it ({error})"
            ) from None

    if not all(m.is_stored(payload) or m.is_function_id(each, payload) for each, payload in found.functions):
        raise ObjectLostError(f"{cannot}: the scheduler sent a different function")
    [run] = found.runs
    [payload] = run.payloads
    what_of = {run.spec.function: "its function", run.spec.serializer: "its serializer", run.spec.code: "its code"}
    functions = [parts(each, what_of[identifier]) for identifier, each in found.functions if identifier in what_of]
    # Large arguments are stored as an object, which is the last input of the task.
    stored = payload[:17] if m.is_stored(payload) else None
    inputs = [each for each in (run.inputs[0] if run.inputs else ()) if each[:17] != stored]
    values = [parts(each, f"input {number}") for number, each in enumerate(inputs)]
    return WhatRan(run.spec, functions, parts(payload, "the object with its arguments"), values)


def id_of_task(task: ScalerFuture | bytes | str) -> bytes:
    if issubclass(type(task), str):
        return task_id_of(cast("str", task))
    if type(task) is bytes:
        return task_id_of(task.hex())
    check_future(task)
    return cast("ScalerFuture", task).task_id


def function_files(spec: m.Spec) -> list[str]:
    """Return the files of `WhatRan.functions`."""
    return ["function.bin", *["serializer.bin"] * bool(spec.serializer), *["code.bin"] * bool(spec.code)]


def write_bundle(loop: ClientLoop, task: ScalerFuture | bytes | str, path: str | PathLike[str]) -> Path:
    """Raises UsageError (also for an unwritable file), ObjectLostError, and UnreachableError."""
    identifier = id_of_task(task)
    ran = what_ran(loop, identifier, "be bundled")
    log = loop.ask(ReadLog(identifier), TaskLog)
    error = loop.ask(Explain(identifier), Explained).text
    traceback = ""
    if isinstance(task, ScalerFuture) and (raised := task.exception()) is not None:
        trace = remote_traceback(raised)
        error, traceback = describe(raised), "" if trace is None else trace.text
    packages = {str(each.metadata["Name"]): each.version for each in distributions()}
    manifest = {
        "format": FORMAT,
        "task": identifier.hex(),
        "function": ran.spec.name,
        "error": error,
        "inputs": len(ran.inputs),
        "has_serializer": bool(ran.spec.serializer),
        "has_code": bool(ran.spec.code),
        "omitted_output_bytes": log.truncated_bytes,
        "environment_of_client": {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "platform": platform.platform(),
            "scaler": __version__,
            "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
        },
    }
    texts = {
        _MANIFEST: json.dumps(manifest, indent=2).encode(),
        "traceback.txt": traceback.encode("utf-8", "backslashreplace"),
        "stdout.txt": log.stdout.decode("utf-8", "backslashreplace").encode(),
        "stderr.txt": log.stderr.decode("utf-8", "backslashreplace").encode(),
    }
    pickles = dict(zip(function_files(ran.spec), ran.functions, strict=True)) | {_ARGUMENTS: ran.arguments}
    pickles |= {f"inputs/{number}.bin": parts for number, parts in enumerate(ran.inputs)}
    target = local_path(fspath(path))
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                archive.writestr(name, text)
            for name, parts in pickles.items():
                archive.writestr(name, to_payload(parts))
    except OSError as failed:
        raise UsageError(f"cannot write {str(target)!r}: {failed.strerror}") from None
    return target


def read_bundle(path: str | Path) -> tuple[WhatRan, str]:
    """Return the pickled call, and a warning about another version of Python, or "". Raises UsageError."""
    path = local_path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MANIFEST).file_size > MAX_MANIFEST_BYTES:
                raise ValueError(f"its {_MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
            manifest = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != FORMAT:
                text = f"bundle {str(path)!r} has format {manifest['format']!r}, but this version reads {FORMAT}"
                raise UsageError(f"{text}: replay it with the version of scaler that wrote it")

            def parts(name: str) -> Parts:
                # Arrays in a bytearray are writable, as on a worker.
                return [*parts_of(bytearray(archive.read(name)))]

            spec = m.Spec(
                function=bytes(16),
                name=str(manifest["function"]),
                serializer=bytes(16 * bool(manifest["has_serializer"])),
                code=bytes(16 * bool(manifest.get("has_code"))),
            )
            inputs = [parts(f"inputs/{number}.bin") for number in range(manifest["inputs"])]
            ran = WhatRan(spec, [*map(parts, function_files(spec))], parts(_ARGUMENTS), inputs)
            written = str(manifest["environment_of_client"]["python"])
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ProtocolError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{str(path)!r} was not written by client.bundle(): {error}") from None
    here = platform.python_version()
    if written.split(".")[:2] == here.split(".")[:2]:
        return ran, ""
    return ran, f"the bundle was written with Python {written}, but {sys.executable} is Python {here}"


# -- replay

_uploads = Uploads()


def replay(ran: WhatRan, *, pdb: bool = False) -> Any:
    """Run a task's function here. Returns its value, or a list for a chunk. pdb: debug an exception, then raise it."""
    code = bytes(ran.functions[-1][0]) if ran.spec.code else b""
    _uploads.use(content_id(code) if code else b"", lambda: code)
    try:
        serializer = load_serializer(ran.functions[1]) if ran.spec.serializer else None
        function = load_function(ran.functions[0], serializer)
        args, kwargs = load_arguments(
            ran.arguments, lambda index: load_value(ran.inputs[index], serializer, f"input {index}"), serializer
        )
        try:
            if isinstance(function, ManyCallsFunction):
                return function.replay(*args)
            return finish(function(*args, **kwargs))
        except BaseException as error:
            if pdb:
                import pdb as debugger  # noqa: PLC0415 (few replays ask for it)

                sys.stderr.write(f"{type(error).__name__}: {escaped_lines(str(error))}\n")
                debugger.post_mortem(error.__traceback__)
            raise
    finally:
        _uploads.use(b"")  # restore the program's own modules


@hiding_frames_of_methods()
class FailureCalls(TaskCalls):
    def bundle(self, task: ScalerFuture | bytes | str, path: str | PathLike[str]) -> Path:
        """Write a failed task to a file for `scaler replay PATH`: function, arguments, inputs, environment,
        output, and traceback. The file contains the values that the task received.

        Args:
            task: as in `replay`.
            path: the new file.

        Returns:
            The path of the file.

        Raises:
            UsageError: The scheduler no longer has the task, or the file cannot be written.
            ObjectLostError: An input is gone; the message names it.
        """
        self._check_open()
        return write_bundle(self._loop, task, path)

    def replay(self, task: ScalerFuture | bytes | str, *, pdb: bool = False) -> Any:
        """Run a failed task in this process, with its inputs. For `map`, runs the chunk up to the failing item.

        Args:
            task: a future, or the id of a task as bytes or hexadecimal text. The task may belong to
                another client, even a disconnected one. The scheduler keeps the last 1,000 failed tasks.
            pdb: open the debugger where the exception is raised.

        Returns:
            The value of the task, if it succeeds this time.

        Raises:
            UsageError: The scheduler no longer has the task.
            ObjectLostError: An input is gone; the message names it.
            SerializationError: The task cannot be loaded here.
        """
        self._check_open()
        return replay(what_ran(self._loop, id_of_task(task), "be replayed"), pdb=pdb)


def replay_bundle(program: str, arguments: Sequence[str], _environment: Mapping[str, str]) -> int:
    """Run the task of a bundle; print its result or traceback, and return the exit code."""
    purpose = "Run the failed task of a bundle locally and print its result or traceback. This runs code from the file:"
    parser = bare_parser(program, f"{purpose} replay only bundles from people you trust.")
    parser.add_argument("bundle", metavar="BUNDLE", help="file written by client.bundle()")
    parser.add_argument("--pdb", action="store_true", help="open a debugger where the task raises its exception")
    given = parser.parse_args(arguments)
    ran, warning = read_bundle(given.bundle)
    if warning:
        sys.stderr.write(f"scaler replay: {warning}\n")
    try:
        value = replay(ran, pdb=given.pdb)
    except Exception as error:  # noqa: BLE001 (the user wants to see any exception of the task)
        sys.stderr.write(escaped_lines(f"{user_traceback(error).strip()}\n"))
        return 1
    sys.stdout.write(f"{escaped_lines(repr(value))}\n")
    return 0
