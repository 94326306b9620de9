"""The flight recorder of a core: dumps its last inputs when the core detects its own fault, and replays them. A file is
JSON lines: a header, then one line per step (time, inputs). Bytes are hexadecimal, and messages are encoded."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, Any

from scaler.config.setting import LoggingConfig
from scaler.errors import ConfigError
from scaler.grammar import counted
from scaler.protocol.codec import decode, encode
from scaler.protocol.messages import Message

MAX_RECORDED_STEPS = 20_000
MAX_RECORDED_BYTES = 16 * 1024 * 1024
"""Approximate limit for recorded inputs, which bounds the memory that the recorder keeps alive."""
ROW_BYTES = 512
"""Overhead of an input, or of a task in a message, beyond its payload."""
_NO_HEAD = "its first line is not the head of a black box"


class Recorder:
    """Keeps the last inputs. Copies and encodes nothing until they are written."""

    def __init__(
        self,
        config: LoggingConfig,
        size_of: Callable[[Any], int],
        *,
        max_steps: int = MAX_RECORDED_STEPS,
        max_bytes: int = MAX_RECORDED_BYTES,
        **head: str,
    ) -> None:
        """size_of: approximate bytes that an input keeps alive. head: additional header fields."""
        self._head = {**head, "config": config.to_json()}
        self._size_of = size_of
        self._max_steps = max_steps
        self._max_bytes = max_bytes
        self._steps: deque[tuple[float, Sequence[Any], int]] = deque()
        self._size_bytes = 0
        self._complete = True

    def add(self, inputs: Sequence[Any], now: float) -> None:
        size_bytes = sum(map(self._size_of, inputs))
        self._steps.append((now, inputs, size_bytes))
        self._size_bytes += size_bytes
        while len(self._steps) > self._max_steps or self._size_bytes > self._max_bytes:
            self._size_bytes -= self._steps.popleft()[2]
            self._complete = False

    def write(self, path: Path) -> None:
        path.touch(mode=0o600)
        with path.open("w") as file:
            file.write(json.dumps({**self._head, "complete": self._complete}) + "\n")
            for now, inputs, _ in self._steps:
                file.write(json.dumps({"now": now, "inputs": _plain(inputs)}) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return {"record": type(value).__name__, "value": value.value}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, Message):
        return {"message": encode(value).hex()}
    if isinstance(value, Mapping):
        return {"items": [[_plain(key), _plain(item)] for key, item in value.items()]}
    names = getattr(value, "_fields", getattr(value, "__dataclass_fields__", None))
    if names is not None:
        return {"record": type(value).__name__, **{name: _plain(getattr(value, name)) for name in names}}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(item) for item in value]
    return value


def read(file: IO[str], records: Iterable[type[Any]]) -> tuple[dict[str, Any], Iterator[tuple[float, list[Any]]]]:
    """Return the header of a record, and (now, inputs) of each step. records: the classes in its inputs. Raises
    ValueError if the file is not a record."""
    known = {kind.__name__: kind for kind in records}

    def from_json(value: dict[str, Any]) -> Any:
        match value:
            case {"record": kind, **parts}:
                return known[kind](**parts)
            case {"bytes": text}:
                return bytes.fromhex(text)
            case {"message": text}:
                return decode(bytes.fromhex(text))
            case {"items": items}:
                return dict(items)
            case _:
                return value

    try:
        head = json.loads(file.readline())
        head["complete"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(_NO_HEAD) from error
    steps = (json.loads(line, object_hook=from_json) for line in file)
    return head, ((step["now"], step["inputs"]) for step in steps)


MakeCore = Callable[[Mapping[str, Any], float], tuple[Callable[[list[Any], float], Any], Callable[[], None]]]
"""Creates a core from a record's header and the time; returns its `step`, and a check of its invariants."""


def replay(path: Path, records: Iterable[type[Any]], make_core: MakeCore) -> int:
    """Step a new core through a record, checking every invariant; return the number of steps. Raises the core's error,
    or AssertionError for a violated invariant; a note names the step. Raises ValueError if the file is not a record,
    and OSError if it is unreadable."""
    with path.open() as file:
        head, steps = read(file, records)
        count = 0
        for count, (now, inputs) in enumerate(steps, 1):
            if count == 1:
                try:
                    step, check = make_core(head, now)
                except (ConfigError, KeyError) as error:
                    raise ValueError(_NO_HEAD) from error
            try:
                step(inputs, now)
                check()
            except Exception as error:
                error.add_note(f"in step {count - 1} of the record, at {now:.6f} s, with inputs {inputs!r}")
                raise
        return count


def main(module: str, replay_file: Callable[[Path], int]) -> int:
    if len(sys.argv) != 2:
        sys.stderr.write(f"usage: python -m {module} FILE\n")
        return 2
    try:
        steps = replay_file(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        return 2
    sys.stdout.write(f"replayed {counted(steps, 'step')}; every invariant held\n")
    return 0
