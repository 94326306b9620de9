"""Output of `scaler profile`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from scaler.errors import UsageError
from scaler.monitor.connection import MonitorConnection
from scaler.paths import local_path
from scaler.stack_profile import StackProfile, read_document

MOST_FRAMES = 30
STDOUT = "-"
_TASK_ID = re.compile("[0-9a-fA-F]{32}")


async def show_profile(
    connection: MonitorConnection, subject: str, output: str, write: Callable[[TextIO, str], None]
) -> None:
    """Print the functions, or print or write the profile of a subject. Raises UsageError."""
    if not subject:
        write(sys.stdout, functions_text((await connection.profile())["functions"]))
        return
    is_task = _TASK_ID.fullmatch(subject) is not None
    document = await (connection.profile(subject) if is_task else connection.profile("", subject))
    if not document["of"]:
        raise UsageError(
            f"there are no samples of {subject!r}; scaler profile ADDRESS lists the functions that have some"
        )
    stacks, name = read_document(document), str(document["name"])
    if not output:
        write(sys.stdout, stacks.table(name, MOST_FRAMES))
        return
    text = written(stacks, name, output)
    if output == STDOUT:
        write(sys.stdout, text)
        return
    _write_file(output, text)
    write(sys.stdout, f"wrote {stacks.samples:,} samples of {name} to {output}")


def _write_file(output: str, text: str) -> None:
    try:
        local_path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output!r}: {error.strerror}") from None


def functions_text(rows: list[list[Any]]) -> str:
    if not rows:
        return "there are no samples yet: tasks have run too shortly, or profile_interval_seconds is 0"
    lines = [f"{microseconds / 1e6:10.2f} s  {name}  {frame}" for name, _, microseconds, frame in rows]
    return "\n".join([f"{'time':>12}  function  hottest frame", *lines])


def hottest_frames(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: frame for name, _, _, frame in document.get("functions", ())}


def profile_text(document: Mapping[str, Any]) -> str:
    if not document["of"]:
        return "there are no samples of this task: it has run too shortly, or profile_interval_seconds is 0"
    table = read_document(document).table(str(document["name"]), MOST_FRAMES)
    return table if document["of"] == "task" else f"no samples of its own, but of all tasks of its function\n{table}"


def written(stacks: StackProfile, name: str, output: str) -> str:
    return json.dumps(stacks.speedscope(name)) if output.endswith(".json") else stacks.collapsed()
