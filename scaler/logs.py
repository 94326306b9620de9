"""Log lines of a component: every line names the process, and no control character leaves it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scaler.errors import UsageError

if TYPE_CHECKING:
    from scaler.config.setting import LoggingConfig  # clients use this module and no settings

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_identity: dict[str, str] = {}
"""Ids in every line of this process, set by `identify`."""
_STREAMS = {"/dev/stdout": "stdout", "/dev/stderr": "stderr"}


def set_up(component: str, config: LoggingConfig) -> None:
    """Direct the process's log to the configured paths, in place of the earlier ones.

    Raises UsageError when a path cannot be opened or the logging configuration file cannot be read.
    """
    if config.logging_config_file is not None:
        _read_config_file(Path(config.logging_config_file))
        return
    formatter = JsonLines(component) if config.logging_format == "json" else TextLines(component)
    handlers = [_open(path) for path in config.logging_paths]
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=config.logging_level, handlers=handlers, force=True)


def identify(**ids: str) -> None:
    """Add ids to every line of this process from now on, such as worker="1f..."; empty ones are left out."""
    _identity.clear()
    _identity.update({kind: text for kind, text in ids.items() if text})


def about(**ids: str) -> dict[str, dict[str, str]]:
    """Return `extra` for a log call about other objects, such as task="5f...": JSON lines have them as keys.

    Empty ones are left out.
    """
    return {"ids": {kind: text for kind, text in ids.items() if text}}


def escaped(text: str) -> str:
    """Return the text with its control characters as escapes, which no terminal interprets."""
    return text.translate(_ESCAPES)


def escaped_lines(text: str) -> str:
    """Return the text with its control characters as escapes, except for line ends and tabs."""
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.replace("\r\n", "\n").split("\n"))


class TextLines(logging.Formatter):
    """Text: time, level, component[pid and ids], logger, message; a traceback follows in lines of its own."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = escaped(component)

    def format(self, record: logging.LogRecord) -> str:
        time = _time_of(record)
        ids = "".join(f" {kind}={escaped(text)}" for kind, text in _identity.items())
        line = f"{time} {record.levelname} {self._component}[{record.process}{ids}] {record.name}: "
        return "\n    ".join([line + escaped(record.getMessage()), *map(escaped, _traceback_of(self, record))])


class JsonLines(logging.Formatter):
    """One JSON object per line, with the keys time, level, component, pid, logger, message, traceback.

    Further keys are the ids of the process and of the object of the line: manager_id, unit_id, worker_id, client_id,
    task_id, peer_id. So a scheduler's line about a worker and that worker's own lines have the same key.
    """

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
            "message": record.getMessage(),
        }
        ids: dict[str, str] = {**_identity, **getattr(record, "ids", {})}
        entry |= {f"{kind}_id": text for kind, text in ids.items()}
        traceback = _traceback_of(self, record)
        if traceback:
            entry["traceback"] = "\n".join(traceback)
        return json.dumps(entry)


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
        return WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"logging_paths: cannot open {path!r}: {error.strerror}") from None


def _read_config_file(path: Path) -> None:
    import logging.config  # noqa: PLC0415 (rarely needed, and takes a megabyte)

    try:
        text = path.read_text()
        if path.suffix == ".json":
            # Our loggers exist already and stay enabled, unless the file says otherwise.
            logging.config.dictConfig({"disable_existing_loggers": False, **json.loads(text)})
        else:
            logging.config.fileConfig(path, disable_existing_loggers=False)
    except OSError as error:
        raise UsageError(f"logging_config_file: cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        # These two functions raise different errors for different mistakes, all of them in the file.
        raise UsageError(f"logging_config_file {str(path)!r}: {error or type(error).__name__}") from None
