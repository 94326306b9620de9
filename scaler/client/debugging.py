"""The calls of a client that bring a failed task to its own machine: as a file, or to run here."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from scaler.client.again import id_of_task, what_ran
from scaler.client.bundle import Failing, write_bundle
from scaler.client.future import ScalerFuture
from scaler.client.loop import ClientLoop
from scaler.client.replay import replay
from scaler.protocol.messages import Explain, Explained, ReadLog, TaskLog
from scaler.serialization import describe
from scaler.serialization.exceptions import remote_traceback


def write_bundle_of(loop: ClientLoop, task: ScalerFuture | bytes | str, path: str | PathLike[str]) -> Path:
    """Write the bundle of a failed task. Raises UsageError, ObjectLostError and UnreachableError."""
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


def replay_of(loop: ClientLoop, task: ScalerFuture | bytes | str, *, pdb: bool) -> Any:
    """Run a failed task in this process. Raises what it raises, and as `write_bundle_of` does."""
    return replay(what_ran(loop, id_of_task(task), "be replayed"), pdb=pdb)
