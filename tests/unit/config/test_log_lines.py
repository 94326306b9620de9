"""Log lines: each names its process, and none can control a terminal."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from scaler import logs, texts
from scaler.config.setting import LoggingConfig
from scaler.errors import UsageError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    logs.identify()


def test_lines_of_the_configured_level_go_to_every_path(tmp_path: Path) -> None:
    paths = (str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    # Excludes pytest's own handlers, because set_up replaces and closes the root logger's handlers.
    logging.getLogger().handlers[:] = []
    logs.set_up("scheduler", LoggingConfig(logging_level="WARNING", logging_paths=paths))
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")
    for path in paths:
        (line,) = Path(path).read_text().splitlines()
        assert " WARNING scheduler[" in line
        assert line.endswith("] x: loud")


def test_hung_log_file_does_not_delay_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO without a reader accepts 64 KiB, and then hangs, like a disk."""
    monkeypatch.setattr(logs, "MAX_WAITING_RECORDS", 100)
    path = tmp_path / "scheduler.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    logging.getLogger().handlers[:] = []
    logs.set_up("scheduler", LoggingConfig(logging_paths=(str(path),)), in_thread=True)
    written = b""

    def read_until(text: bytes) -> None:
        nonlocal written
        while text not in written:
            with contextlib.suppress(BlockingIOError):
                written += os.read(reader, 65536)

    for number in range(1_000):
        logging.getLogger("x").warning("line %d %s", number, "-" * 1_000)
    read_until(b"x: line 99 ")
    logging.getLogger("x").warning("the last line")
    read_until(b"the last line")
    os.close(reader)
    shown = [int(number) for number in re.findall(rb"x: line (\d+)", written)]
    dropped = [int(count) for count in re.findall(rb"dropped records=(\d+)", written)]
    assert shown == sorted(set(shown))
    assert dropped
    assert len(shown) + sum(dropped) == 1_000


def record(message: str, *, error: bool = False) -> logging.LogRecord:
    information = None
    if error:
        try:
            raise ValueError("bad\x1b[2J")
        except ValueError:
            information = sys.exc_info()
    return logging.LogRecord("x", logging.ERROR, "file", 1, message, None, information)


def test_control_characters_are_escaped() -> None:
    line = logs.TextLines("worker").format(record("a\nb\x1b[31m\x9b\x7f\u2028é"))
    assert line.endswith("x: a\\nb\\x1b[31m\\x9b\\x7f\\u2028é")


def test_traceback_follows_on_separate_lines() -> None:
    first, *rest = logs.TextLines("worker").format(record("oops", error=True)).splitlines()
    assert first.endswith("x: oops")
    assert all(line.startswith("    ") for line in rest)
    assert rest[-1] == "    ValueError: bad\\x1b[2J"


def test_every_log_line_of_a_process_has_its_ids() -> None:
    logs.identify(manager="here\x1b", unit="", worker="1f2e")
    assert " worker[" in (line := logs.TextLines("worker").format(record("a")))
    assert " manager=here\\x1b worker=1f2e] x: a" in line
    entry = json.loads(logs.JsonLines("worker").format(record("a")))
    assert (entry["manager_id"], entry["worker_id"], "unit_id" in entry) == ("here\x1b", "1f2e", False)


def test_json_lines_have_the_same_content() -> None:
    line = logs.JsonLines("worker").format(record("a\nb", error=True))
    entry = json.loads(line)
    assert "\n" not in line
    assert (entry["component"], entry["logger"], entry["message"]) == ("worker", "x", "a\nb")
    assert entry["traceback"].endswith("ValueError: bad\x1b[2J")


def test_configuration_file_replaces_the_keys(tmp_path: Path) -> None:
    target = tmp_path / "own.log"
    description = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"f": {"format": "own %(message)s"}},
        "handlers": {"h": {"class": "logging.FileHandler", "filename": str(target), "formatter": "f"}},
        "loggers": {"scaler.own": {"handlers": ["h"], "level": "INFO"}},
    }
    file = tmp_path / "logging.json"
    file.write_text(json.dumps(description))
    logs.set_up("scheduler", LoggingConfig(logging_config_file=str(file)))
    logger = logging.getLogger("scaler.own")
    logger.info("hello")
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    assert target.read_text() == "own hello\n"


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.ini", "nothing"), ("a.json", '{"version": 9}')])
def test_invalid_configuration_file_is_a_usage_error(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError, match="logging_config_file"):
        logs.set_up("scheduler", LoggingConfig(logging_config_file=str(file)))
    with pytest.raises(UsageError, match="cannot read"):
        logs.set_up("scheduler", LoggingConfig(logging_config_file=str(tmp_path / "missing")))


HIDDEN = [
    chr(code)
    for code in (0x00AD, 0x200B, 0x200E, 0x202E, 0x2066, 0x2069, 0x061C, 0xFEFF, 0xE0041, 0x0378, 0xD800, 0x2029)
]
"""A soft hyphen, direction and byte order marks, a tag, an unassigned character, half a pair, a line end."""


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda hidden: f"{ord(hidden):x}")
def test_invisible_and_reversing_characters_are_escaped(hidden: str) -> None:
    shown = hidden.encode("unicode_escape").decode()
    assert texts.escaped(f"a{hidden}b") == f"a{shown}b"
    assert texts.escaped_lines(f"a\tb\n{hidden}\r\n") == f"a\tb\n{shown}\n"
    assert logs.TextLines("worker").format(record(f"a{hidden}b")).endswith(f"x: a{shown}b")
    assert logs.JsonLines("worker").format(record(f"a{hidden}b")).isascii()


def test_repeated_event_is_logged_once_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    loop = Mock()
    limited = logs.RateLimitedLog(logging.getLogger("x"), logging.WARNING, loop)

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records]

    for number in range(4):
        limited.add(f"event {number}")
    assert said() == ["event 0"]
    seconds, flush = loop.call_later.call_args.args
    assert seconds == logs.REPEAT_SECONDS
    flush()
    assert said() == ["event 0", "event 3 (and 2 more like this)"]
    limited.add("event 4")
    loop.call_later.call_args.args[1]()
    loop.call_later.call_args.args[1]()
    limited.add("event 5")
    assert said()[2:] == ["event 4", "event 5"]
