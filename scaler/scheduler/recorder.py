"""The black box: the last inputs of the core, written to a file when the core finds a fault of its own, and its replay.

A file is a line of JSON about the core (its configuration, whether the record goes back to the start), then per input a
line of JSON (time, kind, peer, size of the body) and the body: the encoded message. The answers of the scaling policy
are inputs too, so a replay asks no policy.

`python -m scaler.scheduler.recorder FILE` steps a new core through a file and checks every invariant after every step.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from scaler.config.servers import SchedulerConfig
from scaler.net.connection import Broken, Closed, Opened, Received, Resumed
from scaler.policy.load import load_policy
from scaler.policy.view import Wanted
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Done, Hello, Output, Printed, Submit
from scaler.scheduler.core.commands import Input, MonitoringChanged, NestedOpened, PolicyAnswered
from scaler.scheduler.core.core import SchedulerCore
from scaler.scheduler.core.invariants import check

MAX_RECORDED_STEPS = 20_000
MAX_RECORDED_BYTES = 16 * 1024 * 1024
"""Rough size of the recorded messages: bounds the memory that the black box keeps alive."""
_ROW_BYTES = 512
"""What a task in a message takes beside its payload."""


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
        with path.open("wb") as file:
            head = {"config": vars(self._config), "complete": self._complete}
            file.write(json.dumps(head).encode() + b"\n")
            for now, inputs, _ in self._steps:
                _write_line(file, {"now": now, "inputs": len(inputs)}, b"")
                for item in inputs:
                    _write_input(file, item)


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


def _write_line(file: IO[bytes], line: dict[str, object], body: bytes) -> None:
    file.write(json.dumps({**line, "size": len(body)}).encode() + b"\n" + body)


def _write_input(file: IO[bytes], item: Input) -> None:
    kind = {"kind": type(item).__name__}
    match item:
        case Opened(peer, hello):
            _write_line(file, {**kind, "peer": peer.hex()}, encode(hello))
        case Received(peer, message):
            _write_line(file, {**kind, "peer": peer.hex()}, encode(message))
        case NestedOpened(peer, via):
            _write_line(file, {**kind, "peer": peer.hex(), "via": via.hex()}, b"")
        case Closed(peer, text):
            _write_line(file, {**kind, "peer": peer.hex(), "text": text}, b"")
        case Broken(peer) | Resumed(peer):
            _write_line(file, {**kind, "peer": peer.hex()}, b"")
        case PolicyAnswered(wanted, complaint):
            answer = {manager_id: (answer.units, answer.reason) for manager_id, answer in wanted.items()}
            _write_line(file, {**kind, "wanted": answer, "complaint": complaint}, b"")
        case MonitoringChanged(is_watched):
            _write_line(file, {**kind, "is_watched": is_watched}, b"")


def _read_input(line: dict[str, Any], body: bytes) -> Input:
    peer = bytes.fromhex(line.get("peer", ""))
    match line["kind"]:
        case "Opened":
            hello = decode(body)
            assert isinstance(hello, Hello), "a session begins with Hello"
            return Opened(peer, hello)
        case "Received":
            return Received(peer, decode(body))
        case "NestedOpened":
            return NestedOpened(peer, bytes.fromhex(line["via"]))
        case "Closed":
            return Closed(peer, line["text"])
        case "Broken":
            return Broken(peer)
        case "Resumed":
            return Resumed(peer)
        case "PolicyAnswered":
            return PolicyAnswered(
                {key: Wanted(units, reason) for key, (units, reason) in line["wanted"].items()}, line["complaint"]
            )
        case "MonitoringChanged":
            return MonitoringChanged(line["is_watched"])
        case other:
            raise ValueError(f"unknown kind of input {other!r}")


@dataclass(frozen=True, slots=True)
class Record:
    """A black box as read: steps yields (now, inputs) in order."""

    config: SchedulerConfig
    complete: bool
    steps: Iterator[tuple[float, list[Input]]]


def read(file: IO[bytes]) -> Record:
    """Read a black box. Raises ValueError when the file is not one."""
    try:
        head = json.loads(file.readline())
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in head["config"].items()
        }
        return Record(SchedulerConfig(**settings), head["complete"], _read_steps(file))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError("its first line is not the head of a black box") from error


def _read_steps(file: IO[bytes]) -> Iterator[tuple[float, list[Input]]]:
    while header := file.readline():
        step = json.loads(header)
        inputs: list[Input] = []
        for _ in range(step["inputs"]):
            line = json.loads(file.readline())
            inputs.append(_read_input(line, file.read(line["size"])))
        yield step["now"], inputs


def replay(path: Path) -> int:
    """Step a new core through a black box, checking every invariant; returns the number of steps.

    Raises what the core raises, or AssertionError where an invariant does not hold; a note says in which step.
    Raises ValueError when the file is not a black box, and OSError when it cannot be read.
    """
    with path.open("rb") as file:
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
