"""Log lines of a component. Each line names the process, has no control characters, and is limited in length."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import queue
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scaler.errors import UsageError
from scaler.paths import local_path
from scaler.texts import MAX_MESSAGE_CHARACTERS, escaped, shortened

if TYPE_CHECKING:
    import asyncio

    from scaler.config.setting import LoggingConfig  # clients use this module without settings

MAX_WAITING_RECORDS = 10_000  # maximum number of records waiting for the disk, in a server
CLOSE_SECONDS = 1.0  # time limit for writing the log of a stopping server
REPEAT_SECONDS = 60.0  # minimum interval between lines of a `RateLimitedLog`, which counts the events in between

_identity: dict[str, str] = {}  # ids in every line of this process, set by `identify`
_STREAMS = {"/dev/stdout": "stdout", "/dev/stderr": "stderr"}


def set_up(component: str, config: LoggingConfig, *, in_thread: bool = False) -> None:
    """Direct the process's log to the configured paths, replacing earlier paths. in_thread: write files in a thread, so
    that a hung disk does not block the process. Raises UsageError if a path cannot be opened or the logging
    configuration file is invalid."""
    if config.logging_config_file is not None:
        _read_config_file(local_path(config.logging_config_file))
        return
    formatter = JsonLines(component) if config.logging_format == "json" else TextLines(component)
    handlers = [_open(path) for path in config.logging_paths]
    for number, handler in enumerate(handlers):
        handler.setFormatter(formatter)
        if in_thread and isinstance(handler, logging.FileHandler):
            handlers[number] = InThread(handler)
    logging.basicConfig(level=config.logging_level, handlers=handlers, force=True)


def identify(**ids: str) -> None:
    """Add ids to all later lines of this process, such as worker="1f...". Empty ids are omitted."""
    _identity.clear()
    _identity.update({kind: text for kind, text in ids.items() if text})


def about(**ids: str) -> dict[str, dict[str, str]]:
    """Return `extra` for a log call about other objects, such as task="5f...". Empty ids are omitted."""
    return {"ids": {kind: text for kind, text in ids.items() if text}}


class TextLines(logging.Formatter):
    """Text: time, level, component[pid and ids], logger, message; a traceback follows on its own lines."""

    def __init__(self, component: str, *, with_ids: bool = False) -> None:
        super().__init__()
        self._component = escaped(component)
        self._with_ids = with_ids

    def format(self, record: logging.LogRecord) -> str:
        time = _time_of(record)
        shown = {**_identity, **getattr(record, "ids", {})} if self._with_ids else _identity
        ids = "".join(f" {kind}={escaped(text)}" for kind, text in shown.items())
        line = f"{time} {record.levelname} {self._component}[{record.process}{ids}] {record.name}: "
        texts = (record.getMessage(), *_traceback_of(self, record))
        return line + "\n    ".join(escaped(text, MAX_MESSAGE_CHARACTERS) for text in texts)


class JsonLines(logging.Formatter):
    """One JSON object per line, with the keys time, level, component, pid, logger, message, traceback. Additional keys
    are the ids of the process and of the line's object: manager_id, unit_id, worker_id, client_id, task_id, peer_id. A
    scheduler's line about a worker and the worker's own lines share a key."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "component": self._component,
            "pid": record.process,
            "logger": record.name,
            "message": shortened(record.getMessage()),
        }
        ids: dict[str, str] = {**_identity, **getattr(record, "ids", {})}
        entry |= {f"{kind}_id": text for kind, text in ids.items()}
        traceback = _traceback_of(self, record)
        if traceback:
            entry["traceback"] = "\n".join(map(shortened, traceback))
        return json.dumps(entry)


class InThread(logging.Handler):
    """Passes records to another handler in a thread. Drops and counts records if the queue is full."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._dropped = 0
        self._waiting: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log files", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._waiting.qsize() >= MAX_WAITING_RECORDS:
            self._dropped += 1
            return
        if self._dropped:
            text = f"the disk was too slow for the log: dropped records={self._dropped}"
            self._waiting.put(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))
            self._dropped = 0
        # The arguments may change before the thread reads them.
        record = copy.copy(record)
        record.msg, record.args = record.getMessage(), None
        self._waiting.put(record)

    def close(self) -> None:
        super().close()
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._handler.close()

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._handler.handle(record)


class RateLimitedLog:
    """Logs one kind of frequent event: the first event immediately, later events as a count. Belongs to a loop."""

    def __init__(self, log: logging.Logger, level: int, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._level = level
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None  # set for `REPEAT_SECONDS` after each line
        self._count = 0
        self._last = ""

    def add(self, text: str) -> None:
        self._count += 1
        self._last = text
        if self._timer is None:
            self.flush()

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._count:
            self._timer = self._loop.call_later(REPEAT_SECONDS, self.flush)
            others = f" (and {self._count - 1} more like this)" if self._count > 1 else ""
            self._log.log(self._level, "%s%s", self._last, others)
            self._count = 0


def message_of(record: logging.LogRecord) -> str:
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    return text if error is None else f"{text}: {type(error).__name__}: {error}"


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def _traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    lines = formatter.formatException(record.exc_info).splitlines() if record.exc_info else []
    return lines + (formatter.formatStack(record.stack_info).splitlines() if record.stack_info else [])


def _open(path: str) -> logging.Handler:
    if path in _STREAMS:
        return logging.StreamHandler(getattr(sys, _STREAMS[path]))
    from logging.handlers import WatchedFileHandler  # noqa: PLC0415 (rarely needed, and takes half a megabyte)

    try:
        file = local_path(path)
        with contextlib.suppress(FileExistsError):  # if a file replaces the directory, opening gives a better error
            file.parent.mkdir(parents=True, exist_ok=True)
        return WatchedFileHandler(file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"logging_paths: cannot open {path!r}: {error.strerror}") from None


def _read_config_file(path: Path) -> None:
    import logging.config  # noqa: PLC0415 (rarely needed, and takes a megabyte)

    try:
        text = path.read_text()
        if path.suffix == ".json":
            # Existing loggers stay enabled unless the file disables them.
            logging.config.dictConfig({"disable_existing_loggers": False, **json.loads(text)})
        else:
            logging.config.fileConfig(path, disable_existing_loggers=False)
    except OSError as error:
        raise UsageError(f"logging_config_file: cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        # These functions raise various errors for mistakes in the file.
        raise UsageError(f"logging_config_file {str(path)!r}: {error or type(error).__name__}") from None
