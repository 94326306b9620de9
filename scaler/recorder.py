"""The flight recorder of a core: dumps its last inputs when the core detects its own fault. A file is JSON lines: a
header, then one line per step (time, inputs). Bytes are hexadecimal, and messages are encoded. `scaler.testing.replay`
replays a file."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from scaler.config.setting import LoggingConfig
from scaler.protocol.codec import encode
from scaler.protocol.messages import Message

MAX_RECORDED_STEPS = 20_000
MAX_RECORDED_BYTES = 16 * 1024 * 1024
"""Approximate maximum bytes that recorded inputs keep alive."""
ROW_BYTES = 512
"""Overhead of an input, or of a task in a message, beyond its payload."""


class Recorder:
    """Keeps the last inputs. Copies and encodes nothing until they are written."""

    def __init__(self, config: LoggingConfig, size_of: Callable[[Any], int]) -> None:
        """size_of: approximate bytes that an input keeps alive."""
        self.latest: list[tuple[float, Sequence[Any]]] = []
        """Steps (time, inputs) since the last `trim`. The shell appends each step."""
        self._config = config.to_json()
        self._size_of = size_of
        self._steps: deque[tuple[float, Sequence[Any], int]] = deque()
        self._size_bytes = 0
        self._complete = True

    def trim(self) -> None:
        """Drop the oldest steps beyond the limits. Call several times per second."""
        for now, inputs in self.latest:
            self._steps.append((now, inputs, sum(map(self._size_of, inputs))))
            self._size_bytes += self._steps[-1][2]
        self.latest.clear()
        while len(self._steps) > MAX_RECORDED_STEPS or self._size_bytes > MAX_RECORDED_BYTES:
            self._size_bytes -= self._steps.popleft()[2]
            self._complete = False

    def write(self, path: Path) -> None:
        self.trim()
        path.touch(mode=0o600)
        with path.open("w") as file:
            file.write(json.dumps({"config": self._config, "complete": self._complete}) + "\n")
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
