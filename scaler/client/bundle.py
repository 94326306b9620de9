"""A failed task as one ZIP archive, readable without Scaler, which can run again.

All files except the manifest and texts are pickles, which run code when loaded, so only `scaler replay` loads them.
"""

from __future__ import annotations

import json
import platform
import sys
import zipfile
from importlib.metadata import distributions
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple

from scaler._version import __version__
from scaler.client.again import WhatRan, id_of_task, what_ran
from scaler.client.future import ScalerFuture
from scaler.client.loop import ClientLoop
from scaler.errors import ProtocolError, UsageError
from scaler.paths import local_path
from scaler.protocol.messages import Explain, Explained, ReadLog, Spec, TaskLog
from scaler.serialization import Parts, describe, parts_of, to_payload
from scaler.serialization.exceptions import remote_traceback

FORMAT = 1
_MANIFEST = "manifest.json"
_ARGUMENTS = "arguments.bin"
_FUNCTION, _SERIALIZER, _CODE = "function.bin", "serializer.bin", "code.bin"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024


class Failing(NamedTuple):
    """Report about a failed task. error: one line. omitted_bytes: of the output."""

    task: str
    error: str
    traceback: str
    stdout: str
    stderr: str
    omitted_bytes: int


def environment() -> dict[str, object]:
    packages = {str(each.metadata["Name"]): each.version for each in distributions()}
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "scaler": __version__,
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def write_bundle(path: str | Path, ran: WhatRan, failing: Failing) -> Path:
    """Raises UsageError if the file cannot be written."""
    manifest = {
        "format": FORMAT,
        "task": failing.task,
        "function": ran.spec.name,
        "error": failing.error,
        "inputs": len(ran.inputs),
        "has_serializer": bool(ran.spec.serializer),
        "has_code": bool(ran.spec.code),
        "omitted_output_bytes": failing.omitted_bytes,
        "environment_of_client": environment(),
    }
    path = local_path(path)
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=2))
            for name in ("traceback", "stdout", "stderr"):
                archive.writestr(f"{name}.txt", getattr(failing, name).encode("utf-8", "backslashreplace"))
            names = _names(has_serializer=bool(ran.spec.serializer), has_code=bool(ran.spec.code))
            for name, parts in zip(names, ran.functions, strict=True):
                archive.writestr(name, to_payload(parts))
            archive.writestr(_ARGUMENTS, to_payload(ran.arguments))
            for number, parts in enumerate(ran.inputs):
                archive.writestr(f"inputs/{number}.bin", to_payload(parts))
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from None
    return path


def write_bundle_of(loop: ClientLoop, task: ScalerFuture | bytes | str, path: str | PathLike[str]) -> Path:
    """Raises UsageError, ObjectLostError, and UnreachableError."""
    identifier = id_of_task(task)
    ran = what_ran(loop, identifier, "be bundled")
    log = loop.ask(ReadLog(identifier), TaskLog)
    error = loop.ask(Explain(identifier), Explained).text
    traceback = ""
    if isinstance(task, ScalerFuture) and (raised := task.exception()) is not None:
        trace = remote_traceback(raised)
        error, traceback = describe(raised), "" if trace is None else trace.text
    stdout, stderr = (text.decode("utf-8", "backslashreplace") for text in (log.stdout, log.stderr))
    failing = Failing(identifier.hex(), error, traceback, stdout, stderr, log.truncated_bytes)
    return write_bundle(fspath(path), ran, failing)


def _names(*, has_serializer: bool, has_code: bool) -> list[str]:
    return [_FUNCTION, *([_SERIALIZER] if has_serializer else []), *([_CODE] if has_code else [])]


def read_bundle(path: str | Path) -> tuple[WhatRan, str]:
    """Return what ran, still pickled, and a warning about another version of Python, or "". Raises UsageError."""
    path = local_path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(_MANIFEST).file_size > MAX_MANIFEST_BYTES:
                raise ValueError(f"its {_MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes")
            manifest = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != FORMAT:
                text = f"bundle {str(path)!r} is of format {manifest['format']!r}, and this version reads {FORMAT}"
                raise UsageError(f"{text}: replay it with the version of scaler that wrote it")

            def parts(name: str) -> Parts:
                # A bytearray makes arrays in it writable, as on a worker.
                return [*parts_of(bytearray(archive.read(name)))]

            has_serializer, has_code = bool(manifest["has_serializer"]), bool(manifest.get("has_code"))
            names = _names(has_serializer=has_serializer, has_code=has_code)
            functions = [parts(name) for name in names]
            inputs = [parts(f"inputs/{number}.bin") for number in range(manifest["inputs"])]
            spec = Spec(
                function=bytes(16),
                name=str(manifest["function"]),
                serializer=bytes(16) if has_serializer else b"",
                code=bytes(16) if has_code else b"",
            )
            written = str(manifest["environment_of_client"]["python"])
            ran = WhatRan(spec, functions, parts(_ARGUMENTS), inputs, b"")
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ProtocolError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{str(path)!r} is no bundle of client.bundle(): {error}") from None
    here = platform.python_version()
    if written.split(".")[:2] == here.split(".")[:2]:
        return ran, ""
    return ran, f"the bundle was written with Python {written}, and {sys.executable} is Python {here}"
