"""The black box: the last inputs of the core, written to a file when the core finds a fault of its own, and its replay.

A file is lines of JSON: one about the core (its configuration, whether the record goes back to the start), then one per
step (time, inputs). Bytes are hexadecimal, messages are encoded. The answers of the scaling policy are inputs too, so a
replay asks no policy.

`python -m scaler.scheduler.recorder FILE` steps a new core through a file and checks every invariant after every step.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, get_args

from scaler.config.servers import SchedulerConfig
from scaler.errors import ConfigError
from scaler.net.connection import Received
from scaler.policy.load import load_policy
from scaler.policy.view import Wanted
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Done, Message, Output, Printed, Submit
from scaler.scheduler.core.commands import Input
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.invariants import check

MAX_RECORDED_STEPS = 20_000
MAX_RECORDED_BYTES = 16 * 1024 * 1024
"""Rough size of the recorded messages: bounds the memory that the black box keeps alive."""
_ROW_BYTES = 512
"""What a task in a message takes beside its payload."""
_RECORDS = {kind.__name__: kind for kind in (*get_args(Input), Wanted)}


class Recorder:
    """Keeps the last inputs, without copying or encoding anything until they are written."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._steps: deque[tuple[float, Sequence[Input], int]] = deque()
        self._size_bytes = 0
        self._complete = True

    def add(self, inputs: Sequence[Input], now: float) -> None:
        """Keep one step. Steps without inputs are kept too: time that passes is an input."""
        size_bytes = sum(map(_size_of, inputs))
        self._steps.append((now, inputs, size_bytes))
        self._size_bytes += size_bytes
        while len(self._steps) > MAX_RECORDED_STEPS or self._size_bytes > MAX_RECORDED_BYTES:
            self._size_bytes -= self._steps.popleft()[2]
            self._complete = False

    def write(self, path: Path) -> None:
        """Write the record to a file that only this user can read: it holds users' data."""
        path.touch(mode=0o600)
        with path.open("w") as file:
            file.write(json.dumps({"config": self._config.to_json(), "complete": self._complete}) + "\n")
            for now, inputs, _ in self._steps:
                file.write(json.dumps({"now": now, "inputs": list(inputs)}, default=_to_json) + "\n")


def _size_of(item: Input) -> int:
    """Return roughly how many bytes an input keeps alive. Only what workers and clients send in bulk counts by size."""
    if isinstance(item, Received):
        message = item.message
        if isinstance(message, Submit):
            return sum(_columns(group.payloads) for group in message.groups)
        if isinstance(message, Done):
            return _columns(message.payloads)
        if isinstance(message, Output):
            return _ROW_BYTES + len(message.text)
        if isinstance(message, Printed):
            return _columns(message.texts)
    return _ROW_BYTES


def _columns(payloads: list[bytes]) -> int:
    return _ROW_BYTES * len(payloads) + sum(map(len, payloads))


def _to_json(value: object) -> dict[str, Any]:
    """Return a value that JSON does not know as an object with its kind."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Message):
        return {"message": encode(value).hex()}
    parts = {part.name: getattr(value, part.name) for part in fields(value)}  # type: ignore[arg-type]
    return {"record": type(value).__name__, **parts}


def _from_json(value: dict[str, Any]) -> Any:
    match value:
        case {"record": kind, **parts}:
            return _RECORDS[kind](**parts)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"message": text}:
            return decode(bytes.fromhex(text))
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Record:
    """A black box as read: steps yields (now, inputs) in order."""

    config: SchedulerConfig
    complete: bool
    steps: Iterator[tuple[float, list[Input]]]


def read(file: IO[str]) -> Record:
    """Read a black box. Raises ValueError when the file is not one."""
    try:
        head = json.loads(file.readline())
        return Record(SchedulerConfig.from_json(head["config"]), head["complete"], _read_steps(file))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ValueError("its first line is not the head of a black box") from error


def _read_steps(file: IO[str]) -> Iterator[tuple[float, list[Input]]]:
    for line in file:
        step = json.loads(line, object_hook=_from_json)
        yield step["now"], step["inputs"]


def replay(path: Path) -> int:
    """Step a new core through a black box, checking every invariant; returns the number of steps.

    Raises what the core raises, or AssertionError where an invariant does not hold; a note says in which step.
    Raises ValueError when the file is not a black box, and OSError when it cannot be read.
    """
    with path.open() as file:
        record = read(file)
        policy = load_policy(record.config.policy_engine_type, record.config.policy_content)
        core: SchedulerCore | None = None
        count = 0
        for now, inputs in record.steps:
            if core is None:
                core = SchedulerCore(record.config, policy.allocation, now)
            try:
                core.step(inputs, now)
                check(core.state)
            except Exception as error:
                error.add_note(f"in step {count} of the record, at {now:.6f} s, with inputs {inputs!r}")
                raise
            count += 1
        return count


def main() -> int:
    """Replay the file named on the command line."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m scaler.scheduler.recorder FILE\n")
        return 2
    try:
        steps = replay(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        return 2
    sys.stdout.write(f"replayed {steps} steps; every invariant held\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
